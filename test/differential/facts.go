package differential

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// What the predicates of the table ask of a call. They read its configuration with host-local's own
// parser.

// config returns the configuration as host-local reads it.
func (e Exchange) config() (conf *allocator.IPAMConfig, err error) {
	defer func() {
		if r := recover(); r != nil { // null as a requested address
			err = fmt.Errorf("host-local panics: %v", r)
		}
	}()
	conf, _, err = allocator.LoadIPAMConfig([]byte(e.Stdin), e.Args)
	return conf, err
}

// ranges returns the ranges of each set, as host-local prints them, none if it refuses the
// configuration.
func (e Exchange) ranges() (sets []string) {
	conf, err := e.config()
	if err != nil {
		return nil
	}
	for _, set := range conf.Ranges {
		sets = append(sets, set.String())
	}
	return sets
}

// pool returns the directory of the network.
func (e Exchange) pool() string {
	var conf struct {
		Name string
		IPAM struct{ DataDir string }
	}
	_ = json.Unmarshal([]byte(e.Stdin), &conf)
	d := cmp.Or(conf.IPAM.DataDir, "/var/lib/cni/networks")
	if !filepath.IsAbs(d) {
		d = filepath.Join(dir, d)
	}
	return filepath.Join(d, conf.Name)
}

// network returns the name of the network, which may have several directories.
func (e Exchange) network() string { return filepath.Base(e.pool()) }

func (e Exchange) attachment() lease.Attachment {
	return lease.Attachment{ContainerID: e.ID, IfName: e.IfName}
}

// arg returns the last value of a key of CNI_ARGS, and whether there is one.
func (e Exchange) arg(key string) (value string, given bool) {
	for pair := range strings.SplitSeq(e.Args, ";") {
		if k, v, _ := strings.Cut(pair, "="); k == key {
			value, given = v, true
		}
	}
	return value, given
}

// pod returns the pod of Kubernetes that CNI_ARGS name, "" if they name none.
func (e Exchange) pod() string {
	namespace, _ := e.arg("K8S_POD_NAMESPACE")
	name, _ := e.arg("K8S_POD_NAME")
	uid, _ := e.arg("K8S_POD_UID")
	if !lease.IsNamespace(namespace) || !lease.IsPodName(name) || !lease.IsUID(uid) {
		return ""
	}
	return namespace + "/" + name
}

// namesNoPod reports whether CNI_ARGS have names of a pod that are not of Kubernetes.
func (e Exchange) namesNoPod() bool {
	_, namespace := e.arg("K8S_POD_NAMESPACE")
	_, name := e.arg("K8S_POD_NAME")
	return (namespace || name) && e.pod() == ""
}

// addresses returns the addresses of a result, without their prefix lengths.
func addresses(r Reply) (out []netip.Addr) {
	var result struct {
		IPs      []struct{ Address string }
		IP4, IP6 struct{ IP string }
	}
	if !r.ok() || json.Unmarshal([]byte(r.Stdout), &result) != nil {
		return nil
	}
	texts := []string{result.IP4.IP, result.IP6.IP}
	for _, ip := range result.IPs {
		texts = append(texts, ip.Address)
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}

// isADD reports whether it is an ADD to which both gave addresses.
func (e Exchange) isADD() bool { return e.Verb == "ADD" && e.HostLocal.ok() && e.Leasehold.ok() }

// onlyAddressesDiffer reports whether both gave addresses, of the same number, and the results
// differ.
func (e Exchange) onlyAddressesDiffer() bool {
	theirs, ours := addresses(e.HostLocal), addresses(e.Leasehold)
	return e.isADD() && len(theirs) == len(ours) && !slices.Equal(theirs, ours)
}

// held returns the addresses that leasehold gave to the attachment in the network, and that neither
// a DEL nor a GC has released.
func held(past []Exchange, of Exchange) (out []netip.Addr) {
	for _, e := range past {
		switch {
		case e.Verb == "DEL" && e.Leasehold.ok() && e.attachment() == of.attachment(), of.isEndedByGC(e):
			out = nil
		case e.replaces(of):
			out = slices.DeleteFunc(out, func(a netip.Addr) bool { return slices.Contains(addresses(e.Leasehold), a) })
		case e.Verb == "ADD" && e.attachment() == of.attachment() && e.pool() == of.pool():
			out = append(out, addresses(e.Leasehold)...)
		}
	}
	return out
}

// replaces reports whether an ADD of a pod is of another container in a network namespace, with the
// same interface name: that one has been replaced, because the names of interfaces are unique.
func (e Exchange) replaces(p Exchange) bool {
	return e.Verb == "ADD" && e.Leasehold.ok() && e.network() == p.network() && e.attachment() != p.attachment() &&
		e.Netns == p.Netns && e.IfName == p.IfName && e.pod() != "" && e.pod() == p.pod()
}

// isEndedByGC reports whether a call is a GC of the network of e, with a list in which the
// attachment of e is not.
func (e Exchange) isEndedByGC(gc Exchange) bool {
	var valid []types.GCAttachment
	list := gc.decoded().Attachments
	return gc.Verb == "GC" && gc.Leasehold.ok() && list != nil && json.Unmarshal(list, &valid) == nil &&
		gc.pool() == e.pool() && !slices.Contains(valid, types.GCAttachment{ContainerID: e.ID, IfName: e.IfName})
}

// releases returns a DEL for each ADD that matches and whose addresses are not released yet.
func releases(past []Exchange, match func(Exchange) bool) (dels []Call) {
	for _, a := range past {
		if a.isADD() && match(a) && len(held(past, a)) > 0 {
			del := a.Call
			del.Verb = "DEL"
			dels = append(dels, del)
		}
	}
	return dels
}

// failsHalfway reports whether it is an ADD that fails after host-local has assigned an address: it
// keeps the position in that range set, and has released what the container and interface have. If
// it panics, because a route is null, it has released nothing.
func (e Exchange) failsHalfway() bool {
	_, msg := e.HostLocal.failure()
	isFirst := strings.HasPrefix(msg, "failed to allocate for range 0: ")
	return e.Verb == "ADD" && !e.HostLocal.ok() &&
		(strings.HasPrefix(msg, "failed to allocate ") && !isFirst || strings.HasPrefix(e.HostLocal.Stderr, "panic: "))
}

// hasWindow reports whether the runtime passes a window of the pod.
func (e Exchange) hasWindow() bool { return strings.Contains(e.Stdin, policy.Annotation) }

// released returns the ADDs in the network of a call whose addresses leasehold has released.
func released(past []Exchange, of Exchange) (out []Exchange) {
	for i, e := range past {
		if e.isADD() && e.network() == of.network() && slices.ContainsFunc(past[i:], func(d Exchange) bool {
			return d.Verb == "DEL" && d.Leasehold.ok() && d.attachment() == e.attachment() || d.replaces(e)
		}) {
			out = append(out, e)
		}
	}
	return out
}

func intersect(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(one netip.Addr) bool { return slices.Contains(b, one) })
}

func addrOf(ip []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// decoded is a part of a configuration.
type decoded struct {
	Type, IPAM  json.RawMessage
	Attachments json.RawMessage `json:"cni.dev/valid-attachments"`
}

func (e Exchange) decoded() (conf decoded) {
	_ = json.Unmarshal([]byte(e.Stdin), &conf)
	return conf
}

// refusesOwnKey reports whether leasehold fails because of a key that only it has.
func (e Exchange) refusesOwnKey() bool {
	_, msg := e.Leasehold.failure()
	return e.HostLocal.ok() && !e.Leasehold.ok() && slices.ContainsFunc(ownKeys, func(key string) bool {
		return strings.HasPrefix(msg, "invalid network configuration: ipam."+key+": ")
	})
}

var ownKeys = []string{"onBusy", "busyTimeout", "onExhaustion", "maxWindow", "maxHeldShare", "coolDown",
	"defaultWindow", "cniCacheDirs"}
