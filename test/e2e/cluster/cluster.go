package cluster

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Cluster is a Kubernetes cluster and its directory:
//
//	bin/       built programs, kept between runs
//	images/    container images as tarballs
//	run/       the running cluster: keys, configuration, sockets, logs, the machines' disks
//	failed/    artefacts of failed scenarios
type Cluster struct {
	Options
	Dir  string
	Repo string
	// ID distinguishes the clusters of different directories on one host. It is part of link names
	// and addresses.
	ID int
	// Simulated is whether nodes and pods are objects that a test has made: nobody renews Leases,
	// and owners of pods need not exist. No controller expects either.
	Simulated bool
	// Machines are the running machines by name. The pid alone is not sufficient, because pids are
	// reused.
	Machines map[string]Process

	logf func(format string, args ...any)
}

// Process identifies a process uniquely.
type Process struct {
	PID   int
	Start uint64 // field 22 of /proc/PID/stat
}

// New returns a cluster that is not running yet.
func New(repo, dir string, o Options) *Cluster {
	h := fnv.New32a()
	h.Write([]byte(dir))
	began := time.Now()
	return &Cluster{Options: o, Dir: dir, Repo: repo, ID: int(h.Sum32() % 64),
		Machines: map[string]Process{},
		logf: func(format string, args ...any) {
			fmt.Printf("%5.0fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		}}
}

// Load returns the cluster that runs in a directory, or os.ErrNotExist.
func Load(repo, dir string) (*Cluster, error) {
	b := New(repo, dir, Options{})
	data, err := os.ReadFile(b.path("run/cluster.json"))
	if err != nil {
		return nil, err
	}
	return b, json.Unmarshal(data, b)
}

func (c *Cluster) save() error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(c.path("run/cluster.json"), data)
}

func (c *Cluster) path(rel string) string { return filepath.Join(c.Dir, rel) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.path("run/admin.kubeconfig") }

// Kubectl returns the path of kubectl.
func (c *Cluster) Kubectl() string { return c.path("bin/" + c.kubernetes() + "/kubectl") }

// Control is the name of the control plane's machine.
const Control = "control"

// NodeNames returns the names of the nodes.
func (c *Cluster) NodeNames() []string {
	var names []string
	for i := range c.Nodes {
		names = append(names, fmt.Sprintf("node%d", i+1))
	}
	return names
}

func (c *Cluster) bridge() string { return fmt.Sprintf("lh%d", c.ID) }

// hostAddr and controlAddr return the addresses of the host and the control plane in the machines'
// network.
func (c *Cluster) hostAddr() netip.Prefix    { return c.machineAddr(1) }
func (c *Cluster) controlAddr() netip.Prefix { return c.machineAddr(10) }

func (c *Cluster) nodeAddr(i int) netip.Prefix { return c.machineAddr(11 + i) }

func (c *Cluster) machineAddr(last int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + c.ID), 0, byte(last)}), 24)
}

// v6 returns the IPv6 address of a machine with the given IPv4 address.
func (c *Cluster) v6(p netip.Prefix) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x::%x/64", c.ID, p.Addr().As4()[3]))
}

// PodSubnet returns the pod CIDR of node i.
func (c *Cluster) PodSubnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + c.ID), byte(i + 1), 0}), 24)
}

// PodSubnet6 returns the IPv6 pod CIDR of node i.
func (c *Cluster) PodSubnet6(i int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd4c:%x:%x::/64", c.ID, i+1))
}

func (c *Cluster) podNetwork() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + c.ID), 0, 0}), 16)
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
func (c *Cluster) apiURL() string {
	return fmt.Sprintf("https://%v:%d", c.controlAddr().Addr(), apiPort)
}

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
