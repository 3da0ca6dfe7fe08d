package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/must"
)

// A Pod is the part of a pod that a runtime passes to plugins.
type Pod struct {
	Namespace, Name, UID string
	Annotations          map[string]string // nil is passed as null, as containerd does
}

// NewPod returns a pod with a new UID. If window is empty it has no annotation.
func NewPod(namespace, name, window string) Pod {
	pod := Pod{Namespace: namespace, Name: name, UID: newUUID()}
	if window != "" {
		pod.Annotations = map[string]string{"io.kubernetes.cri/reserved-ip-duration": window}
	}
	return pod
}

// Recreated returns the pod with another UID, as its controller recreates it.
func (p Pod) Recreated() Pod {
	p.UID = newUUID()
	return p
}

// A Sandbox is a pod sandbox on a node. Its fields are passed to plugins in every call. A test may
// change them to simulate a runtime that passes other values.
type Sandbox struct {
	Pod          Pod
	ID           string
	NetNS        string
	IfName       string
	Args         [][2]string       // CNI_ARGS
	Capabilities map[string]any    // runtimeConfig
	MACs         map[string]string // of its interfaces, according to the last result

	node    *Node
	mount   string // the original NetNS
	closers []func()
}

// Sandbox creates a network namespace for a pod, as a runtime does before it calls a plugin.
func (n *Node) Sandbox(pod Pod) *Sandbox {
	n.t.Helper()
	path, err := newNetNS()
	must.Succeed(n.t, err, "network namespace")
	id := newID()
	s := &Sandbox{
		Pod: pod, ID: id, NetNS: path, IfName: "eth0", node: n, mount: path,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", pod.UID},
		},
		Capabilities: map[string]any{Annotations: pod.Annotations},
	}
	n.t.Cleanup(s.Remove)
	return s
}

func (s *Sandbox) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: s.ID, NetNS: s.NetNS, IfName: s.IfName, Args: s.Args,
		CapabilityArgs: s.Capabilities}
}

// Add attaches the sandbox to a network and returns its addresses, in the order of the result.
func (s *Sandbox) Add(net *Network) ([]string, error) {
	result, err := s.node.cni.AddNetworkList(context.Background(), net.list, s.runtimeConf())
	if err != nil {
		return nil, err
	}
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	s.MACs = map[string]string{}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			s.MACs[i.Name] = i.Mac
		}
	}
	var addrs []string
	for _, ip := range r.IPs {
		addrs = append(addrs, ip.Address.IP.String())
	}
	return addrs, nil
}

// Del detaches the sandbox from a network.
func (s *Sandbox) Del(net *Network) error {
	return s.node.cni.DelNetworkList(context.Background(), net.list, s.runtimeConf())
}

// Stored returns a network as it was at the last ADD of the sandbox, from libcni's cache: CRI-O
// calls DEL and CHECK with that configuration.
func (s *Sandbox) Stored(net *Network) *Network {
	s.node.t.Helper()
	content, _, err := s.node.cni.GetNetworkListCachedConfig(net.list, s.runtimeConf())
	if err != nil || content == nil {
		s.node.t.Fatalf("libcni's cache has no configuration of %s: %v", s.Pod.Name, err)
	}
	return s.node.List(content)
}

// Check calls CHECK.
func (s *Sandbox) Check(net *Network) error {
	return s.node.cni.CheckNetworkList(context.Background(), net.list, s.runtimeConf())
}

// Stop calls DEL and removes the network namespace, as a runtime does to stop a sandbox.
func (s *Sandbox) Stop(net *Network) error {
	err := s.Del(net)
	s.Remove()
	return err
}

// Address puts an address, with the length of its prefix, on a new interface eth0 of the sandbox.
func (s *Sandbox) Address(address string) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return ns.WithNetNSPath(s.NetNS, func(ns.NetNS) error {
		eth0 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
		return errors.Join(netlink.LinkAdd(eth0), netlink.AddrAdd(eth0, addr))
	})
}

// Remove removes the network namespace and kills its processes, without calling a plugin.
func (s *Sandbox) Remove() {
	for _, closer := range s.closers {
		closer()
	}
	s.closers = nil
	s.Unmount()
}

// RemoveKeepingInode is Remove, after which the kernel gives the inode number of the namespace to
// no other one until the test ends, because a file of it stays open. The plugin also sees the
// namespaces of other tests, and must treat one with that number as a sign of life
// (docs/operations.md, Known limits). It is not for sandboxes with an interface of the node, which
// would stay.
func (s *Sandbox) RemoveKeepingInode() {
	if f, err := os.Open(s.mount); err == nil {
		s.node.t.Cleanup(func() { f.Close() })
	}
	s.Remove()
}

// Unmount unmounts the network namespace. The namespace exists as long as a process is in it.
func (s *Sandbox) Unmount() { removeNetNS(s.mount) }

// CNIArgs returns the value of CNI_ARGS.
func (s *Sandbox) CNIArgs() string {
	var args []string
	for _, arg := range s.Args {
		args = append(args, arg[0]+"="+arg[1])
	}
	return strings.Join(args, ";")
}

// Call calls the network's IPAM plugin directly, as the network's first plugin does.
func (s *Sandbox) Call(net *Network, verb string) Reply {
	return s.node.Call(s.IPAMCall(net, verb))
}

// IPAMCall returns the call that Call makes.
func (s *Sandbox) IPAMCall(net *Network, verb string) Call {
	return Call{
		Plugin: net.Main["ipam"].(Conf)["type"].(string), Verb: verb,
		ContainerID: s.ID, NetNS: s.NetNS, IfName: s.IfName,
		Args: s.CNIArgs(), Stdin: net.Stdin(Conf{"runtimeConfig": s.Capabilities}),
	}
}

// Start runs a process in the sandbox until Remove.
func (s *Sandbox) Start(name string, args ...string) *os.Process {
	cmd := exec.Command(name, args...)
	err := ns.WithNetNSPath(s.mount, func(ns.NetNS) error { return cmd.Start() })
	must.Succeed(s.node.t, err, name, "in the sandbox")
	s.closers = append(s.closers, func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd.Process
}

// EchoPort is the port of Echo.
const EchoPort = "7"

// Echo starts a TCP echo server in the sandbox.
func (s *Sandbox) Echo() {
	var listener net.Listener
	err := ns.WithNetNSPath(s.mount, func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp", ":"+EchoPort)
		return err
	})
	must.Succeed(s.node.t, err, "echo server")
	s.closers = append(s.closers, func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(conn, conn); conn.Close() }()
		}
	}()
}

// Ask sends a message to the echo server at address from the sandbox, and waits for the reply.
func (s *Sandbox) Ask(address string) error {
	return ns.WithNetNSPath(s.mount, func(ns.NetNS) error { return ask(net.JoinHostPort(address, EchoPort)) })
}

// Ask sends a message to an echo server at host:port from the node, and waits for the reply.
func (n *Node) Ask(hostPort string) error { return n.Do(func() error { return ask(hostPort) }) }

// ask retries for a minute, because the sender may have a neighbour entry with the address's former
// MAC, which the kernel replaces after at least 23 s.
func ask(hostPort string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := askOnce(hostPort)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func askOnce(hostPort string) error {
	conn, err := net.DialTimeout("tcp", hostPort, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	answer := make([]byte, len("hello"))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != "hello" {
		return fmt.Errorf("%s replied %q", hostPort, answer)
	}
	return nil
}

const netnsDir = "/run/netns"

// newNetNS creates a network namespace, bind-mounted at a path with a random name, as containerd
// and CRI-O do.
func newNetNS() (path string, err error) {
	path = filepath.Join(netnsDir, "cni-"+newUUID())
	return path, MountNetNS(path)
}

// MountNetNS creates a network namespace, bind-mounted at a path.
func MountNetNS(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return err
	}
	err := inNewNetNS(func() error {
		if err := netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
			return fmt.Errorf("lo up: %w", err)
		}
		if err := withoutDAD(); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// withoutDAD makes IPv6 addresses of the thread's network namespace usable at once. The main
// plugins wait 10 s for the detection of duplicates, and a busy machine can take longer.
func withoutDAD() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// inNewNetNS calls f on a thread in a new network namespace, and restores the thread's namespace.
func inNewNetNS(f func() error) error {
	runtime.LockOSThread() // not the main thread, which is locked to the main goroutine
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, so that no other goroutine uses it
	}
	runtime.UnlockOSThread()
	return err
}

// removeNetNS may be called more than once.
func removeNetNS(path string) {
	unix.Unmount(path, unix.MNT_DETACH)
	os.Remove(path)
}

func newID() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newUUID() string {
	id := newID()
	return fmt.Sprintf("%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:32])
}
