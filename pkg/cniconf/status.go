package cniconf

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// State says whether leasehold assigns the addresses of a network.
type State string

// The states of a network. It is Unknown if something could not be read.
const (
	Active   State = "Active"
	Inactive State = "Inactive"
	Unknown  State = "Unknown"
)

// The reasons of the states of a network.
const (
	// Named: active, the configuration names leasehold.
	Named = "Named"
	// Replaced: active, the configuration names host-local, whose binary is leasehold.
	Replaced = "Replaced"

	// HostLocalNamed: the configuration names host-local, whose binary is not leasehold. Name
	// leasehold, or use replace.
	HostLocalNamed = "HostLocalNamed"
	// FlannelDefault: flannel's entry has no ipam, which means host-local: its manifest was
	// applied again, or nothing was changed yet. Change the ConfigMap, or use replace.
	FlannelDefault = "FlannelDefault"
	// K3sDefault: flannel's entry has no ipam, which means host-local, and k3s writes the file at
	// each start. Use replace, or k3s' option --flannel-cni-conf with a list that names leasehold.
	K3sDefault = "K3sDefault"
	// OtherIPAM: the configuration names another IPAM plugin than host-local, or a plugin that
	// assigns addresses itself. leasehold replaces only host-local.
	OtherIPAM = "OtherIPAM"
	// NoIPAM: no plugin of the network has an ipam section. Add one.
	NoIPAM = "NoIPAM"
	// BinaryReplaced: another program is where leasehold was, or the file is not executable.
	// Restart the agent's pod; with replace the installer acts by itself.
	BinaryReplaced = "BinaryReplaced"
	// BinaryMissing: the configuration names leasehold, which is not in the runtime's
	// directory. Correct --cni-bin-dir of the installer or of the agent.
	BinaryMissing = "BinaryMissing"
	// NoConfiguration: the directory has no configuration. Install a CNI plugin, or correct
	// --cni-conf-dir.
	NoConfiguration = "NoConfiguration"
	// InvalidConfiguration: the first file is not valid, so containerd loads no configuration.
	// Correct or remove the file.
	InvalidConfiguration = "InvalidConfiguration"

	// ConfigurationUnreadable: unknown, the configuration cannot be read.
	ConfigurationUnreadable = "ConfigurationUnreadable"
	// BinaryUnreadable: unknown, the plugin's binary cannot be read.
	BinaryUnreadable = "BinaryUnreadable"
	// DelegatesUnknown: unknown, Multus names a network that is not in its own file.
	DelegatesUnknown = "DelegatesUnknown"
	// PluginUnknown: unknown, leasehold does not know a plugin that has no ipam section.
	PluginUnknown = "PluginUnknown"
)

// Status reports whether leasehold assigns the addresses of a network, and why.
type Status struct {
	// Network is the name of the network, "" if no configuration names one.
	Network string
	State   State
	Reason  string
	// Message says which file names which plugin, and what the user can do about it.
	Message string
	// File is the path of the configuration, or of the directory if no file was loaded. IPAM is the
	// IPAM plugin that the configuration names. Binary is the path of the file that a runtime runs
	// for that plugin. Each is "" if not known.
	File, IPAM, Binary string
	// Missing are the types of plugins that are in none of the directories, or cannot be run, so
	// that each ADD fails. They do not include IPAM.
	Missing []string
	// CanName reports whether `leasectl install --conf` can name leasehold in File (WithLeasehold).
	CanName bool
	// Pool is the pool of the network. It is zero if it is not known, or if leasehold does not read
	// host-local's files of the pool.
	Pool lease.Pool
	// Sets are the range sets of the configuration, nil if not known. Size is how many addresses
	// pods can get by it: those of the smallest set, 0 if not known.
	Sets []pool.Set
	Size uint64
	// Stdin is what the IPAM plugin gets on standard input with each ADD, from each entry of the
	// list that names it, without what the container runtime adds: values of capabilities, and
	// prevResult. It lacks what is not known.
	Stdin [][]byte
	// GetsAnnotations reports whether the plugin gets the annotations of pods from the runtime, or
	// has a default window instead. ByMultus reports whether Multus calls the plugins, which passes
	// no annotations on.
	GetsAnnotations, ByMultus bool
	// Since is when the configuration or the binary last changed, zero if not known.
	Since time.Time
}

// HostLocalKept is the file name under which the original host-local is kept while leasehold's
// binary has the name host-local.
const HostLocalKept = HostLocal + ".original"

var (
	// chained plugins modify the interfaces that earlier plugins of the list have created. They
	// assign no addresses.
	chained = []string{"portmap", "bandwidth", "tuning", "firewall", "sbr", "vrf", "loopback", Leasehold}
	// delegating plugins call the IPAM plugin that their ipam section names. Without such a
	// section, they assign no addresses.
	delegating = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap"}
	// assigning plugins assign addresses themselves, without an IPAM plugin that leasehold could
	// replace.
	assigning = []string{"cilium-cni", "aws-cni", "kube-ovn", "ovn-k8s-cni-overlay"}
)

// Check returns the status of each network whose configuration the runtime loads. If the runtime
// loads none, Check returns one status that says why.
func Check(c Conf, b Binaries) []Status {
	switch {
	case c.Unread != nil:
		return []Status{{State: Unknown, Reason: ConfigurationUnreadable, Message: c.Unread.Error(), File: c.Dir}}
	case c.Rejected != nil:
		f := c.Rejected
		return []Status{{State: Inactive, Reason: InvalidConfiguration, File: f.Path, Network: f.Network,
			Since: f.Changed, Message: fmt.Sprintf("%s is the first configuration and is not valid: %v; correct it, "+
				"or remove it", f.Path, f.Invalid)}}
	case len(c.Loaded) == 0:
		return []Status{{State: Inactive, Reason: NoConfiguration, File: c.Dir,
			Message: fmt.Sprintf("%s has no CNI configuration; install a CNI plugin, or set --cni-conf-dir to the "+
				"directory that the runtime uses", c.Dir)}}
	}
	var out []Status
	for _, f := range c.Loaded {
		networks, in := c.networks(f)
		for _, n := range networks {
			out = append(out, b.check(in, n))
		}
	}
	return out
}

// networks returns the networks whose plugins assign addresses for the configuration f, and the
// file that has these networks: those that Multus delegates to, or else the network of f itself.
func (c Conf) networks(f File) ([]Delegate, File) {
	for _, p := range f.Plugins {
		switch {
		case len(p.Follows) > 0:
			return p.Follows, f
		case p.ClusterNetwork != "":
			// Multus runs in a container, where the directories of the host are mounted below
			// another directory, so only the end of the path is compared.
			for _, other := range c.Files {
				if strings.HasSuffix(p.ClusterNetwork, other.Path) && len(other.Plugins) > 0 {
					return []Delegate{{other.Network, other.Plugins, true}}, other
				}
			}
		}
	}
	return []Delegate{{Network: f.Network, Plugins: f.Plugins}}, f
}

// check returns the status of one network of the configuration f. It has one case for each reason,
// in the order of their precedence.
func (b Binaries) check(f File, n Delegate) Status {
	s := Status{Network: n.Network, File: f.Path, Since: f.Changed, Missing: b.missing(n.Plugins)}
	set := func(state State, reason, format string, args ...any) Status {
		s.State, s.Reason, s.Message = state, reason, fmt.Sprintf(format, args...)
		return s
	}
	at := slices.IndexFunc(n.Plugins, func(p Plugin) bool { return p.IPAM.Type != "" })
	if at < 0 {
		state, reason, text := withoutIPAM(f, n.Plugins)
		return set(state, reason, "%s", text)
	}
	p := n.Plugins[at]
	s.IPAM, s.ByMultus = p.IPAM.Type, n.ByMultus
	s.GetsAnnotations = p.PassesAnnotations && !n.ByMultus || p.IPAM.DefaultWindow != ""
	s.Pool, s.Sets = p.IPAM.pool(n.Network), setsOf(p.stdin(n.Network, f.cniVersion))
	s.Size = sizeOf(s.Sets)
	for _, other := range n.Plugins[at:] {
		if other.IPAM.Type == p.IPAM.Type && other.callsAny() {
			if stdin := other.stdin(n.Network, f.cniVersion); stdin != nil {
				s.Stdin = append(s.Stdin, stdin)
			}
		}
	}
	_, err := WithLeasehold(f.Path, f.content)
	s.CanName = err == nil && p.File == f.Path
	binary, err := b.Resolve(p.IPAM.Type)
	if err != nil {
		return set(Unknown, BinaryUnreadable, "%s names %s, and its binary could not be read: %v", p.File, s.IPAM, err)
	}
	s.Binary = binary.Path
	if binary.Changed.After(s.Since) {
		s.Since = binary.Changed
	}
	named := fmt.Sprintf("%s names %s at %s", p.File, p.IPAM.Type, p.IPAM.Pointer)
	if p.IPAM.Default {
		named = fmt.Sprintf("%s names no IPAM plugin at %s, which means %s", p.File, p.IPAM.Pointer, p.IPAM.Type)
	}
	switch {
	case binary.Ours && s.IPAM == Leasehold:
		return set(Active, Named, "%s", named)
	case binary.Ours:
		return set(Active, Replaced, "%s, and %s is leasehold's plugin", named, binary.Path)
	case s.IPAM == Leasehold && binary.Path == "":
		return set(Inactive, BinaryMissing, "%s, and there is no such file in %s; install it there, or set "+
			"--cni-bin-dir to the directory that the runtime uses", named, strings.Join(b, " or "))
	case s.IPAM == Leasehold:
		return set(Inactive, BinaryReplaced, "%s, and %s is another program, or not executable; install leasehold "+
			"there again", named, binary.Path)
	case s.IPAM != HostLocal:
		return set(Inactive, OtherIPAM, "%s; leasehold can take the place of host-local only: its addresses are "+
			"the node's own", named)
	case b.wasReplaced(binary):
		return set(Inactive, BinaryReplaced, "%s, and %s is not leasehold's plugin any more: another program has "+
			"installed it over leasehold; install leasehold in its place again", named,
			filepath.Join(b.dirOf(binary), HostLocal))
	case p.IPAM.Default && isK3s(f.Path):
		return set(Inactive, K3sDefault, "%s; k3s writes this file at each start: name leasehold in a file for "+
			"its option --flannel-cni-conf, or install leasehold in host-local's place", named)
	case p.IPAM.Default:
		return set(Inactive, FlannelDefault, "%s; kube-flannel writes this file at each start from cni-conf.json in "+
			"the ConfigMap kube-flannel-cfg, which flannel's manifest replaces: add "+
			`"ipam": {"type": "leasehold"} to flannel's entry there and restart its pods, or install leasehold in `+
			"host-local's place", named)
	}
	remedy := "install leasehold in host-local's place"
	if s.CanName {
		remedy = "set the type to leasehold, or " + remedy
	}
	if binary.Path == "" {
		return set(Inactive, HostLocalNamed, "%s, and there is no such file in %s; %s", named, strings.Join(b, " or "),
			remedy)
	}
	return set(Inactive, HostLocalNamed, "%s, and %s is not leasehold's plugin; %s", named, binary.Path, remedy)
}

// missing returns those types of the plugins of a network that the runtime cannot run.
func (b Binaries) missing(plugins []Plugin) (types []string) {
	for _, p := range plugins {
		kinds := []string{p.Type}
		if p.flannel != nil {
			kinds = append(kinds, cmp.Or(p.flannel.Delegate.Type, "bridge"))
		}
		for _, kind := range kinds {
			if binary, err := b.Resolve(kind); err == nil && !binary.CanRun {
				types = append(types, kind)
			}
		}
	}
	return types
}

// pool returns the pool of a network. See Status.Pool.
func (i IPAM) pool(network string) lease.Pool {
	dir := cmp.Or(i.DataDir, policy.DefaultDataDir)
	if !hostlocal.IsNetwork(network) || !filepath.IsAbs(dir) {
		return lease.Pool{}
	}
	return lease.Pool{DataDir: files.Canonical(filepath.Clean(dir)), Network: network}
}

// withoutIPAM returns the state, the reason and the message for a network none of whose plugins
// names an IPAM plugin.
func withoutIPAM(f File, plugins []Plugin) (State, string, string) {
	for _, p := range plugins {
		switch {
		case isMultus(p.Type):
			return Unknown, DelegatesUnknown, fmt.Sprintf("%s calls %s, whose delegates are not in its entry, and "+
				"whose clusterNetwork %q is not in this directory", p.File, p.Type, p.ClusterNetwork)
		case slices.Contains(assigning, p.Type):
			return Inactive, OtherIPAM, fmt.Sprintf("%s calls %s, which assigns addresses itself; leasehold can take "+
				"the place of host-local only", p.File, p.Type)
		}
	}
	for _, p := range plugins {
		if !slices.Contains(chained, p.Type) && !slices.Contains(delegating, p.Type) {
			return Unknown, PluginUnknown, fmt.Sprintf("%s calls %s without an ipam section; which IPAM plugin it "+
				"uses is not known", p.File, p.Type)
		}
	}
	return Inactive, NoIPAM, fmt.Sprintf("%s names no IPAM plugin; add an ipam section of type leasehold", f.Path)
}

// wasReplaced reports whether leasehold had replaced host-local in the directory of the binary: the
// original host-local is still kept there.
func (b Binaries) wasReplaced(binary Binary) bool {
	info, err := os.Lstat(filepath.Join(b.dirOf(binary), HostLocalKept))
	return err == nil && !info.IsDir()
}

// dirOf returns the directory of a binary. If the binary does not exist, it returns the first
// directory of plugins.
func (b Binaries) dirOf(binary Binary) string {
	if binary.Path == "" && len(b) > 0 {
		return b[0]
	}
	return filepath.Dir(binary.Path)
}

// isK3s reports whether a configuration is in the directory that k3s writes. That directory is
// below the data directory of k3s, which a user may choose.
func isK3s(path string) bool { return strings.HasSuffix(filepath.Dir(path), "/agent/etc/cni/net.d") }
