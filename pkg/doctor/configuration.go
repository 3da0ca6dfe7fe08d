package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

const (
	notKept = "no address is kept: pods with the annotation get another one when they are created again"
	// restartAgents restarts the pods of the agents, whose init containers install the plugin on
	// each node.
	restartAgents = "kubectl -n leasehold-system rollout restart daemonset/leasehold-agent"
	// restartFlannel restarts the pods of kube-flannel, which write their configuration at each
	// start.
	restartFlannel = "kubectl -n kube-flannel rollout restart daemonset/kube-flannel-ds"
)

// repairs are the functions that return the repair commands, by the reason of the Status. There
// must be an entry for each reason of the state Inactive, because checkConfiguration calls it
// unconditionally.
var repairs = map[string]func(*Node, cniconf.Status) []string{
	cniconf.HostLocalNamed: func(n *Node, s cniconf.Status) []string { return []string{n.installIn(s.File)} },
	cniconf.FlannelDefault: func(n *Node, s cniconf.Status) []string {
		if hasBackup(s.File) {
			return []string{n.installIn(s.File)}
		}
		return []string{"kubectl leasehold install --yes"}
	},
	cniconf.K3sDefault: func(*Node, cniconf.Status) []string {
		return []string{"kubectl apply -k daemonset/overlays/k3s"}
	},
	cniconf.OtherIPAM:            (*Node).disable,
	cniconf.NoIPAM:               (*Node).disable,
	cniconf.InvalidConfiguration: (*Node).disable,
	cniconf.BinaryReplaced:       (*Node).installBinary,
	cniconf.BinaryMissing:        (*Node).installBinary,
	cniconf.BinaryNotExecutable: func(_ *Node, s cniconf.Status) []string {
		return []string{command("chmod", "0755", s.Binary)}
	},
	cniconf.NoConfiguration: func(*Node, cniconf.Status) []string { return []string{restartFlannel} },
}

// checkConfiguration checks whether the container runtime calls leasehold for each network.
func checkConfiguration(_ context.Context, n *Node) (found []Finding, err error) {
	for _, s := range cniconf.Check(n.conf, n.Binaries) {
		switch s.State {
		case cniconf.Unknown:
			err = errors.Join(err, fmt.Errorf("%s: %s", s.Reason, s.Message))
		case cniconf.Inactive:
			f := Finding{Reason: s.Reason, Subject: "network " + s.Network, What: s.Message,
				Why:    notKept,
				Repair: repairs[s.Reason](n, s)}
			if s.Network == "" {
				f.Subject = s.File
			}
			if s.IPAM != cniconf.Leasehold && hasBackup(s.File) {
				f.What += "; leasectl install has named leasehold in this file before, and another program has " +
					"written it again"
			}
			found = append(found, f)
		}
	}
	return found, err
}

// hasBackup reports whether leasectl install has changed the configuration file.
func hasBackup(file string) bool {
	_, err := os.Lstat(file + cniconf.BackupSuffix)
	return err == nil
}

// installIn returns the command that names leasehold in a configuration file.
func (n *Node) installIn(file string) string {
	return command("leasectl", "install", "--conf="+file, "--cni-bin-dir="+strings.Join(n.Binaries.Dirs, ","), "--yes")
}

// disable returns the command for a configuration that cannot be changed to name leasehold. If
// another configuration names leasehold, the command hides this one from the runtime. If there is a
// backup of this one, the commands restore it and name leasehold in it again. Otherwise the command
// opens an editor.
func (n *Node) disable(s cniconf.Status) []string {
	for _, f := range n.conf.Files {
		if f.Path != s.File && f.NamesLeasehold() && f.Invalid == nil {
			return []string{command("mv", s.File, s.File+".disabled")}
		}
	}
	if hasBackup(s.File) {
		return []string{command("cp", s.File+cniconf.BackupSuffix, s.File), n.installIn(s.File)}
	}
	return []string{`"${EDITOR:-vi}" ` + command(s.File)}
}

// installBinary returns the commands that install the plugin at the path where the runtime looks
// for it. They copy it from another directory of this node, if one has it. Otherwise they restart
// the agents.
func (n *Node) installBinary(s cniconf.Status) []string {
	if len(n.Binaries.Dirs) == 0 {
		return []string{restartAgents}
	}
	target := s.Binary
	if target == "" {
		target = filepath.Join(n.Binaries.Dirs[0], s.IPAM)
	}
	for _, dir := range append(append([]string{}, n.Binaries.Dirs...), cniconf.KnownBinDirs...) {
		for _, name := range []string{cniconf.Leasehold, cniconf.HostLocal} {
			b, err := (&cniconf.Binaries{Dirs: []string{dir}}).Resolve(name)
			if err != nil || !b.Ours || !b.Executable {
				continue
			}
			put := []string{install(b.Path, target)}
			if s.IPAM == cniconf.HostLocal { // keep the present host-local, which uninstall restores
				put = append([]string{command("cp", "-a", target, filepath.Join(filepath.Dir(target),
					cniconf.HostLocalKept))}, put...)
			}
			return put
		}
	}
	return []string{restartAgents}
}

// checkAnnotations checks that the plugin learns the retention windows of pods, either from the
// runtime or from an agent on the node.
func checkAnnotations(_ context.Context, n *Node) (found []Finding, err error) {
	for _, s := range cniconf.Check(n.conf, n.Binaries) {
		if s.State != cniconf.Active || s.GetsAnnotations {
			continue
		}
		runs, err := agentRuns()
		if runs || err != nil {
			return nil, err
		}
		found = append(found, Finding{Reason: "NoAnnotations", Subject: "network " + s.Network,
			What: fmt.Sprintf("%s does not declare the capability with which the runtime passes annotations, and no "+
				"leasehold-agent runs on this node", s.File),
			Why:    "no address is kept: nothing tells the plugin which pods have the annotation",
			Repair: []string{command("leasectl", "install", "--conf="+s.File, "--pod-annotations", "--yes")}})
	}
	return found, nil
}

// agentRuns reports whether an agent runs on the node.
func agentRuns() (bool, error) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, p := range processes {
		exe, err := os.Readlink(filepath.Join("/proc", p.Name(), "exe"))
		if err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "leasehold-agent" {
			return true, nil
		}
	}
	return false, nil
}
