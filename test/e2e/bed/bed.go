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

// Bed is a cluster and its directory:
//
//	bin/       built programs, kept between runs
//	images/    container images as tarballs
//	run/       the running cluster: keys, configuration, sockets, logs, the machines' disks
//	failed/    artefacts of failed scenarios
type Bed struct {
	Options
	Dir  string
	Repo string
	// ID distinguishes the clusters of different directories on one host. It is part of link names
	// and addresses.
	ID int
	// NodeGrace is the node-monitor-grace-period of the controller manager. The default is short,
	// so that scenarios which lose a node do not wait for a minute.
	NodeGrace time.Duration
	// Machines are the running machines by name. The pid alone would not do, because pids are
	// reused.
	Machines map[string]Process

	say func(format string, args ...any)
}

// Process identifies a process uniquely.
type Process struct {
	PID   int
	Start uint64 // field 22 of /proc/PID/stat
}

// New returns a bed whose cluster is not running yet.
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

// Load returns the bed whose cluster runs in a directory, or os.ErrNotExist.
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

// Kubeconfig returns the path of the administrator's kubeconfig.
func (b *Bed) Kubeconfig() string { return b.path("run/admin.kubeconfig") }

// Kubectl returns the path of kubectl.
func (b *Bed) Kubectl() string { return b.path("bin/kubernetes/kubectl") }

const control = "control"

// NodeNames returns the names of the nodes.
func (b *Bed) NodeNames() []string {
	var names []string
	for i := range b.Nodes {
		names = append(names, fmt.Sprintf("node%d", i+1))
	}
	return names
}

func (b *Bed) bridge() string { return fmt.Sprintf("lh%d", b.ID) }

// hostAddr and controlAddr return the addresses of the host and the control plane in the machines'
// network.
func (b *Bed) hostAddr() netip.Prefix    { return b.machineAddr(1) }
func (b *Bed) controlAddr() netip.Prefix { return b.machineAddr(10) }

func (b *Bed) nodeAddr(i int) netip.Prefix { return b.machineAddr(11 + i) }

func (b *Bed) machineAddr(last int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + b.ID), 0, byte(last)}), 24)
}

// v6 returns the IPv6 address of a machine with the given IPv4 address.
func (b *Bed) v6(p netip.Prefix) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x::%x/64", b.ID, p.Addr().As4()[3]))
}

// PodSubnet returns the pod CIDR of node i.
func (b *Bed) PodSubnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + b.ID), byte(i + 1), 0}), 24)
}

// PodSubnet6 returns the IPv6 pod CIDR of node i.
func (b *Bed) PodSubnet6(i int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x:%x::/64", b.ID, i+1))
}

func (b *Bed) podNetwork() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + b.ID), 0, 0}), 16)
}

// The service network exists only inside the cluster, so it is the same in all clusters.
const (
	serviceNetwork = "10.96.0.0/16"
	apiService     = "10.96.0.1"
	apiPort        = 443
	dnsService     = "10.96.0.10"
)

// apiURL returns the URL of the API server for clients that are not pods. Pods use the cluster IP,
// from their environment.
func (b *Bed) apiURL() string { return fmt.Sprintf("https://%v:%d", b.controlAddr().Addr(), apiPort) }

func writeFile(path string, data []byte) error { return writeFileMode(path, data, 0o644) }

// writeFileMode writes a file atomically: containerd watches its CNI directory, and could read an
// incomplete one.
func writeFileMode(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	os.Remove(tmp) // a killed run may have left it, with another mode
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
