package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

// checkConfiguration checks whether the container runtime calls leasehold for each network, and
// whether the plugin then learns the retention windows of pods, either from the runtime or from an
// agent on the node.
func (n *nodeDoctor) checkConfiguration(context.Context) {
	agent, unknown := n.Host.Running(func(name, _ string) bool { return name == cli.AgentName })
	unknown = cmp.Or(unknown, n.proveHost())
	for _, s := range n.networks {
		switch {
		case s.State == cniconf.Unknown:
			n.Fail(fmt.Errorf("%s: %s", s.Reason, s.Message))
		case s.State == cniconf.Inactive:
			f := cli.Finding{Reason: s.Reason, Subject: networkOf(s), What: s.Message, Why: cli.NotKept}
			f.Repair, f.Decide = n.advise(s, agent != 0, unknown)
			n.Find(f)
		case s.GetsAnnotations || agent != 0:
		case unknown != nil:
			n.Fail(unknown)
		default:
			f := cli.Finding{Reason: "NoAnnotations", Subject: networkOf(s),
				What: fmt.Sprintf("%s does not declare the capability with which the runtime passes annotations, and "+
					"no leasehold-agent runs on this node", s.File),
				Why:    "no address is kept: nothing tells the plugin which pods have the annotation",
				Repair: []string{cli.PassAnnotations(s.File)}}
			if s.ByMultus {
				f.What = "Multus passes no annotations to its delegates, and no leasehold-agent runs on this node"
				f.Repair, f.Decide = nil, "whether the agent is to run on this node, or all pods of the network get "+
					"the same window: defaultWindow in the ipam section"
			}
			n.Find(f)
		}
	}
}

// advise returns the repair of a network for which leasehold is not active, or what there is to
// decide. unknown is why it is not known whether an agent runs, nil if it is known.
func (n *nodeDoctor) advise(s cniconf.Status, agentRuns bool, unknown error) (repair []string, decide string) {
	switch s.Reason {
	case cniconf.HostLocalNamed, cniconf.FlannelDefault:
		// In flannel's ConfigMap leasehold may be named for all nodes.
		if s.Reason == cniconf.HostLocalNamed && s.CanName && findPlugin(n.BinDirs) == nil {
			return []string{cli.NameLeasehold(s.File, n.BinDirs)}, ""
		}
		return nil, "in which of the two ways leasehold is installed: named in the configuration, or in host-local's " +
			`place (docs/install.md, "Install")`
	case cniconf.K3sDefault:
		return nil, "in which of the two ways leasehold is installed on k3s (docs/install.md, \"Install\")"
	case cniconf.BinaryReplaced, cniconf.BinaryMissing:
		switch {
		case agentRuns:
			return []string{cli.RestartAgents}, ""
		case unknown != nil:
			return nil, fmt.Sprintf("whether an agent runs on this node, which is not known (%v). If one does, its "+
				"DaemonSet installs the plugin: %s. If not, install leasehold again, or name host-local in %s", unknown,
				cli.RestartAgents, s.File)
		}
		return nil, "whether leasehold is still wanted here: no agent runs on this node, whose DaemonSet installs " +
			"the plugin. If so, install it again; if not, name host-local in " + s.File
	case cniconf.NoConfiguration:
		return nil, "which CNI plugin this node is to have; most write their configuration when their own pod starts " +
			"on the node, as kube-flannel does"
	}
	return nil, n.whichConfiguration(s)
}

// whichConfiguration returns what there is to decide about a configuration that cannot be changed
// to name leasehold: it may be the network of the node, or left over from another one.
func (n *nodeDoctor) whichConfiguration(s cniconf.Status) string {
	for _, f := range n.conf.Files {
		if f.Path != s.File && f.NamesLeasehold() && f.Invalid == nil {
			return fmt.Sprintf("which of the two is the network of this node: %s, or %s, which names leasehold and is "+
				"not loaded because its name sorts after the other's. Move away only the file that no pod needs: "+
				"without the right one, pods have no network", s.File, f.Path)
		}
	}
	return fmt.Sprintf("whether %s is the network that this node is to have, and whether leasehold is wanted for it",
		s.File)
}
