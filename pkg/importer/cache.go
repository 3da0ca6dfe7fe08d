package importer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// cacheKind is the kind of libcni's cache files since version 0.8.
const cacheKind = "cniCacheV1"

// annotationsKey is the capability under which the CRI runtimes pass a pod's
// annotations (docs/facts.md, "Pod annotations arrive as a capability, and may be null").
const annotationsKey = "io.kubernetes.cri.pod-annotations"

// cacheFile has the fields that are read of libcni's file <network>-<container>-<interface>
// (docs/facts.md, "libcni keeps a cache of results"). The file exists from the end of an ADD to the
// end of its DEL, if all plugins of the chain succeeded.
type cacheFile struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns"` // older releases do not write it
	CNIArgs        [][2]string                `json:"cniArgs"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	Result         struct {
		IP4        resultIP   `json:"ip4"` // CNI 0.1 and 0.2
		IP6        resultIP   `json:"ip6"` // the same
		IPs        []resultIP `json:"ips"` // since 0.3
		Interfaces []struct { // since 0.3
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"` // the path of the namespace, if it is not the node's
		} `json:"interfaces"`
	} `json:"result"`
}

// resultIP is one address of a result, with the length of its prefix.
type resultIP struct {
	IP      string `json:"ip"`      // CNI 0.1 and 0.2
	Address string `json:"address"` // since 0.3
}

// cache returns the candidates of libcni's cache about the attachments of a network.
func (s Sources) cache(network string, notes *notes) []candidate {
	candidates := s.cacheFiles(network, network+"-", notes)
	markReplaced(candidates)
	return candidates
}

// markReplaced changes fromLiveCache to fromDeadCache for containers that are gone, but whose path
// leads to the namespace of another container now. A namespace has only one interface of a name.
// Therefore only the newest of several containers with the same namespace and interface exists.
func markReplaced(candidates []candidate) {
	type place struct {
		dev, ino uint64
		ifName   string
	}
	newest := map[place]candidate{}
	at := func(c candidate) place { return place{c.Netns.Dev, c.Netns.Ino, c.IfName} }
	for _, c := range candidates {
		if c.Netns.Ino != 0 && c.Modified.After(newest[at(c)].Modified) {
			newest[at(c)] = c
		}
	}
	for i, c := range candidates {
		if n := newest[at(c)]; c.Netns.Ino != 0 && c.ContainerID != n.ContainerID && c.Modified.Before(n.Modified) {
			candidates[i].Kind, candidates[i].Netns = fromDeadCache, lease.Netns{Path: c.Netns.Path}
		}
	}
}

// cacheEntry returns the candidates of libcni's cache about one attachment, one for each of its
// addresses, and a text for each problem. An empty ifName, as in host-local's old files,
// means every interface of the container.
func (s Sources) cacheEntry(network, containerID, ifName string) (candidates []candidate, problems []string) {
	if !hostlocal.IsNetwork(network) || !hostlocal.IsContainerID(containerID) ||
		ifName != "" && !hostlocal.IsIfName(ifName) {
		return nil, nil
	}
	var notes notes
	for _, c := range s.cacheFiles(network, network+"-"+containerID+"-"+ifName, &notes) {
		if c.ContainerID == containerID && (ifName == "" || c.IfName == ifName) {
			candidates = append(candidates, c)
			if c.Netns.Path == "" { // as in files of libcni before 1.2, with results that name no sandbox
				notes.add("%s names no network namespace", c.Source)
			}
		}
	}
	return candidates, notes.texts
}

func (s Sources) cacheFiles(network, prefix string, notes *notes) []candidate {
	var out []candidate
	for _, dir := range s.CacheDirs {
		names, err := []string{prefix}, error(nil)
		if strings.HasSuffix(prefix, "-") { // it is not a complete name
			names, err = files.List(dir)
		}
		if err != nil {
			notes.addUnread("libcni's cache cannot be listed: %v", err)
		}
		for _, name := range names {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			candidates, err := s.readCache(filepath.Join(dir, name), network, notes)
			switch {
			case err != nil && len(candidates) == 0:
				notes.addUnread("%v", err)
			case err != nil:
				notes.add("%v", err)
			}
			out = append(out, candidates...)
		}
	}
	return out
}

func (s Sources) readCache(path, network string, notes *notes) ([]candidate, error) {
	b, modified, err := files.Read(path)
	if files.IsMissing(err) {
		return nil, nil // removed by a DEL
	}
	if err != nil {
		return nil, fmt.Errorf("cache file cannot be read: %w", err)
	}
	c, addresses, named, err := parseCache(b)
	if err != nil {
		err = fmt.Errorf("cache file %s: %w", path, err)
	}
	if named != network {
		return nil, err // the prefix of network "a" is also one of network "a-b"
	}
	c.Source, c.Modified = "cache file "+path, modified
	c.Kind = fromDeadCache
	if netns, ok := s.alive(c.Netns.Path, notes); ok {
		c.Kind, c.Netns = fromLiveCache, netns
	}
	out := make([]candidate, 0, len(addresses))
	for _, a := range addresses {
		c.Address = a
		out = append(out, c)
	}
	return out, err
}

// parseCache parses one cache file. It returns a candidate about the attachment, its addresses and
// its network. If it returns both a candidate and an error, the candidate lacks what the error is
// about.
func parseCache(b []byte) (c candidate, addresses []netip.Addr, network string, err error) {
	var f cacheFile
	if err := json.Unmarshal(b, &f); err != nil {
		return c, nil, "", err
	}
	if f.Kind != cacheKind {
		return c, nil, "", fmt.Errorf("has kind %s, want %s", policy.Quote(f.Kind), cacheKind)
	}
	if !hostlocal.IsContainerID(f.ContainerID) || !hostlocal.IsIfName(f.IfName) || !hostlocal.IsNetwork(f.NetworkName) {
		return c, nil, "", errors.New("has no valid container id, interface and network")
	}
	c = candidate{ContainerID: f.ContainerID, IfName: f.IfName}
	if path := f.netns(); filepath.IsAbs(path) {
		c.Netns.Path = path
	}
	errPod := c.readArgs(f.CNIArgs)
	request, errWindow := policy.ParseAnnotations(f.CapabilityArgs[annotationsKey])
	c.Window, c.WindowKnown = request.Window, request.Known
	if c.hasPod() {
		c.ReserveAs = request.ReserveAs
	}
	return c, f.addresses(), f.NetworkName, errors.Join(errPod, errWindow)
}

// readArgs reads the pod from the pairs of keys and values in CNI_ARGS, which come in any order; of
// a repeated key the last value is used (docs/facts.md, "CNI_ARGS come in any order, and
// repeated"). Without a pod it changes nothing. A UID that is not valid is ignored, because the
// name identifies the pod without it.
func (c *candidate) readArgs(args [][2]string) error {
	values := map[string]string{}
	for _, pair := range args {
		values[pair[0]] = pair[1]
	}
	namespace, name := values["K8S_POD_NAMESPACE"], values["K8S_POD_NAME"]
	if namespace == "" && name == "" {
		return nil
	}
	if !hostlocal.IsPod(namespace, name) {
		return fmt.Errorf("%s in namespace %s is not a valid pod name", policy.Quote(name), policy.Quote(namespace))
	}
	c.Namespace, c.Name = namespace, name
	if uid := values["K8S_POD_UID"]; hostlocal.IsUID(uid) {
		c.UID = uid
	}
	return nil
}

// netns returns the path of the network namespace, "" if the file does not have it.
func (f *cacheFile) netns() string {
	if f.NetNS != "" {
		return f.NetNS
	}
	for _, i := range f.Result.Interfaces {
		if i.Name == f.IfName && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}

// addresses returns the addresses of the result, of any CNI version.
func (f *cacheFile) addresses() (out []netip.Addr) {
	for _, ip := range append([]resultIP{f.Result.IP4, f.Result.IP6}, f.Result.IPs...) {
		if a, ok := hostlocal.ParseCIDR(cmp.Or(ip.IP, ip.Address)); ok {
			out = append(out, a)
		}
	}
	return out
}

// alive returns the namespace at a path, and reports whether it exists. The process id in a path
// such as /proc/PID/ns/net may have been reused, even by a process in the host's namespace. Such a
// path therefore counts only if it leads to one of the namespaces found, which do not include the
// host's.
func (s Sources) alive(path string, notes *notes) (lease.Netns, bool) {
	netns, err := s.Netns(path)
	if err != nil && !errors.Is(err, host.ErrNotNetns) {
		notes.add("the addresses of network namespace %s count as in use, because it cannot be read: %v", path, err)
		return netns, true
	}
	if err != nil || !strings.HasPrefix(filepath.Clean(path), "/proc/") {
		return netns, err == nil
	}
	found, err := s.Namespaces()
	return netns, err != nil || slices.ContainsFunc(found, func(n host.Namespace) bool { return n.Netns.Same(netns) })
}
