package windows

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

// as is a pod with a generated name and the reservation name registry.
func as(annotation string) retention.Pod { return asking(annotation, "registry") }

// asking is a pod with a generated name.
func asking(annotation, reserveAs string) retention.Pod {
	p := apiPodWith(policy.Annotation, annotation, policy.ReserveAs, reserveAs)
	p.Name, p.GenerateName = "registry-x7k2p", "registry-"
	p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "ReplicaSet", "registry"
	return retention.PodOf(p)
}

// of changes a lease to one of a pod with the reservation name registry.
func of(pod string, l lease.Lease) lease.Lease {
	l.Name, l.ReserveAs = pod, "registry"
	return l
}

func TestMakeWithReservationNames(t *testing.T) {
	const hour, own = time.Hour, "registry-x7k2p"
	deleting, other := as("60"), asking("60", "mirror")
	deleting.Expected, deleting.Deleting = false, true
	record := store.NamedPod{Namespace: "db", Name: own, UID: "u1", ReserveAs: "registry",
		Window: lease.Window(hour)}
	follow := []maintain.PodWindow{{Namespace: "db", Name: own, SetWindow: lease.SetWindow{UID: "u1",
		Window: lease.Window(hour), ReserveAs: "registry"}}}
	late := of("registry-aaaaa", held("u0", hour, hour))
	for _, c := range []struct {
		name   string
		pod    retention.Pod
		leases []lease.Lease
		known  bool // there is a record
		want   plan
	}{
		{"before its sandbox", as("60"), nil, false, plan{Name: []store.NamedPod{record}}},
		{"recorded", as("60"), nil, true, plan{}},
		{"no window", as("0"), nil, false, plan{}},
		{"deleted before its sandbox", deleting, nil, false, plan{}},
		{"its lease has the name", as("60"), []lease.Lease{of(own, bound("u1", hour))}, false, plan{}},
		{"its lease has no name", as("60"), []lease.Lease{func() lease.Lease {
			l := of(own, bound("u1", hour))
			l.ReserveAs = ""
			return l
		}()}, false, plan{Follow: follow}},
		{"a hold of the name, in time", as("60"), []lease.Lease{of("registry-aaaaa", held("u0", hour, 0))}, true,
			plan{RequeueAfter: 59 * time.Minute}},
		{"a hold of the name, late", as("60"), []lease.Lease{late}, true,
			plan{Expect: refs(late), RequeueAfter: time.Minute}},
		{"a hold of another name", other, []lease.Lease{of("registry-aaaaa", held("u0", hour, hour))}, false,
			plan{Name: []store.NamedPod{{Namespace: "db", Name: own, UID: "u1", ReserveAs: "mirror",
				Window: lease.Window(hour)}}}},
		{"being deleted", deleting, []lease.Lease{of(own, bound("u1", hour))}, false, plan{}},
	} {
		view := maintain.NodeView{Leases: c.leases, Now: now,
			NamedPods: map[store.NamedPod]time.Time{}}
		if c.known {
			view.NamedPods[record] = time.Now()
		}
		got := makePlan(map[kube.Name]retention.Pod{c.pod.Name: c.pod}, view, nil)
		check.NoDiff(t, cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()), c.name)
	}
}

// A reservation name has many holds. As many are extended as pods of the name are starting, in the
// order in which the pods get them: their own, then those that were released last.
func TestHoldsOfANameAreExtendedForItsPods(t *testing.T) {
	const hour, own = time.Hour, "registry-x7k2p"
	hold := func(addr, pod string, since time.Duration) lease.Lease {
		l := of(pod, held("uid-of-"+pod, hour, since))
		l.Address = netip.MustParseAddr(addr)
		return l
	}
	first, second := hold("10.0.0.2", "registry-aaaaa", hour-time.Second), hold("10.0.0.3", "registry-bbbbb", hour)
	third, v6 := hold("10.0.0.4", "registry-ccccc", hour), hold("fd00::2", "registry-aaaaa", hour-time.Second)
	mine, later := hold("10.0.0.5", own, hour), hold("10.0.0.6", "registry-ddddd", time.Minute)
	other := as("60")
	other.Name.Name, other.UID = "registry-other", "u2"
	for _, c := range []struct {
		name   string
		pods   []retention.Pod
		leases []lease.Lease
		want   map[maintain.Ref]lease.Lease
	}{
		{"one pod", []retention.Pod{as("60")}, []lease.Lease{third, second, first}, refs(first)},
		{"one pod, of both families", []retention.Pod{as("60")}, []lease.Lease{third, first, v6}, refs(first, v6)},
		{"two pods", []retention.Pod{as("60"), other}, []lease.Lease{third, second, first}, refs(first, second)},
		{"its own", []retention.Pod{as("60")}, []lease.Lease{first, mine, third}, refs(mine)},
		{"its own, and one for another pod", []retention.Pod{as("60"), other}, []lease.Lease{third, first, mine},
			refs(mine, first)},
		{"one that lasts", []retention.Pod{as("60")}, []lease.Lease{first, later, third}, nil},
		{"more pods than holds", []retention.Pod{as("60"), other}, []lease.Lease{first}, refs(first)},
	} {
		view, pods := maintain.NodeView{Leases: c.leases, Now: now}, map[kube.Name]retention.Pod{}
		for _, p := range c.pods {
			pods[p.Name] = p
		}
		got := makePlan(pods, view, nil).Expect
		check.NoDiff(t, cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()), c.name)
	}
}

func TestLeaving(t *testing.T) {
	const own = "registry-x7k2p"
	deleting := as("60")
	deleting.Deleting = true
	lives := of(own, bound("u1", time.Hour))
	shown := lives
	shown.Leaving = true
	leaves := []maintain.LeavingPod{{Namespace: "db", Name: own, Leave: lease.Leave{UID: "u1"}}}
	for _, c := range []struct {
		name   string
		pods   []retention.Pod
		leases []lease.Lease
		was    string // the UID of a pod that was deleted
		want   []maintain.LeavingPod
	}{
		{"lives", []retention.Pod{as("60")}, []lease.Lease{lives}, "", nil},
		{"being deleted", []retention.Pod{deleting}, []lease.Lease{lives, lives}, "", leaves},
		{"being deleted, as its lease shows", []retention.Pod{deleting}, []lease.Lease{shown}, "", nil},
		{"was deleted", nil, []lease.Lease{lives}, "u1", leaves},
		{"a mirror pod that was made again", []retention.Pod{as("60")}, []lease.Lease{shown}, "",
			[]maintain.LeavingPod{{Namespace: "db", Name: own, Leave: lease.Leave{UID: "u1", Stays: true}}}},
		{"never seen", nil, []lease.Lease{lives}, "", nil},
		{"without a name", []retention.Pod{deleting}, []lease.Lease{bound("u1", time.Hour)}, "", nil},
	} {
		pods := map[kube.Name]retention.Pod{}
		former := map[kube.Name]retention.Pod{as("60").Name: {UID: c.was}}
		for _, p := range c.pods {
			pods[p.Name] = p
		}
		check.NoDiff(t, cmp.Diff(c.want, leaving(pods, former, c.leases)), c.name)
	}
}
