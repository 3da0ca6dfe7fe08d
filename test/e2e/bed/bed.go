package bed

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Bed is a cluster and the folder that it lives in:
//
//	bin/       what was built, kept from run to run
//	images/    container images as tarballs
//	run/       the running cluster: keys, configuration, sockets, logs, the machines' disks
//	failed/    what the scenarios that failed left to look at
type Bed struct {
	Options
	Dir  string
	Repo string
	// ID tells beds of other folders on the same host apart: it is in the names of links and in the addresses.
	ID int
	// NodeGrace is how long a node may be silent before it is called lost. Short by default: scenarios that lose a node
	// should not take a minute to notice.
	NodeGrace time.Duration
	// Machines are the running machines by name, as they were started: a pid alone may be another process by now.
	Machines map[string]Process

	say func(format string, args ...any)
}

// Process names a process for good.
type Process struct {
	PID   int
	Start uint64 // field 22 of /proc/PID/stat
}

// New returns a bed that is not up yet.
func New(repo, dir string, o Options) *Bed {
	h := fnv.New32a()
	h.Write([]byte(dir))
	began := time.Now()
	return &Bed{Options: o, Dir: dir, Repo: repo, ID: int(h.Sum32() % 64), NodeGrace: 20 * time.Second,
		Machines: map[string]Process{},
		say: func(format string, args ...any) {
			fmt.Printf("%5.0fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		}}
}

// Load returns the bed that is up in a folder, or an error that is os.ErrNotExist.
func Load(repo, dir string) (*Bed, error) {
	b := New(repo, dir, Options{})
	data, err := os.ReadFile(b.path("run/cluster.json"))
	if err != nil {
		return nil, err
	}
	return b, json.Unmarshal(data, b)
}

func (b *Bed) save() error {
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(b.path("run/cluster.json"), data)
}

func (b *Bed) path(rel string) string { return filepath.Join(b.Dir, rel) }

// Kubeconfig is the file that kubectl needs.
func (b *Bed) Kubeconfig() string { return b.path("run/admin.kubeconfig") }

// Kubectl is the program.
func (b *Bed) Kubectl() string { return b.path("bin/kubernetes/kubectl") }

const control = "control"

// NodeNames lists the nodes.
func (b *Bed) NodeNames() []string {
	var names []string
	for i := range b.Nodes {
		names = append(names, fmt.Sprintf("node%d", i+1))
	}
	return names
}

func (b *Bed) bridge() string { return fmt.Sprintf("lh%d", b.ID) }

// hostAddr is the host's address in the machines' network, controlAddr that of the control plane.
func (b *Bed) hostAddr() netip.Prefix    { return b.machineAddr(1) }
func (b *Bed) controlAddr() netip.Prefix { return b.machineAddr(10) }

func (b *Bed) nodeAddr(i int) netip.Prefix { return b.machineAddr(11 + i) }

func (b *Bed) machineAddr(last int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + b.ID), 0, byte(last)}), 24)
}

// v6 is the IPv6 address that goes with a machine's IPv4 address.
func (b *Bed) v6(p netip.Prefix) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x::%x/64", b.ID, p.Addr().As4()[3]))
}

// PodSubnet is node i's share of the pod network.
func (b *Bed) PodSubnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + b.ID), byte(i + 1), 0}), 24)
}

// PodSubnet6 is the same for IPv6.
func (b *Bed) PodSubnet6(i int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x:%x::/64", b.ID, i+1))
}

func (b *Bed) podNetwork() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + b.ID), 0, 0}), 16)
}

// serviceNetwork exists inside the cluster alone, so it may be the same in every bed.
const (
	serviceNetwork = "10.96.0.0/16"
	apiService     = "10.96.0.1"
	apiPort        = 443
	dnsService     = "10.96.0.10"
)

// apiURL is where the API server answers everybody but the pods, who know it as https://10.96.0.1 from their environment.
func (b *Bed) apiURL() string { return fmt.Sprintf("https://%v:%d", b.controlAddr().Addr(), apiPort) }

func writeFile(path string, data []byte) error { return writeFileMode(path, data, 0o644) }

// writeFileMode renames the file into place: containerd watches its CNI folder and would read half a file.
func writeFileMode(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	os.Remove(tmp) // left by a run that was killed, perhaps with another mode
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
