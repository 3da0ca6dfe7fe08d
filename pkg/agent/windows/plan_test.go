package windows

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
)

var (
	now  = lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "b"}
	name = kube.Name{Namespace: "db", Name: "db-0"}
)

func ago(d time.Duration) lease.Instant {
	return lease.Instant{Wall: now.Wall.Add(-d), Boot: now.Boot - d, BootID: "b"}
}

// apiPodWith returns db-0 of a StatefulSet with annotations, given as keys and values.
func apiPodWith(keysAndValues ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db",
			Controller: new(true)}}, Annotations: map[string]string{}}}
	for i := 0; i < len(keysAndValues); i += 2 {
		p.Annotations[keysAndValues[i]] = keysAndValues[i+1]
	}
	return p
}

func pod(annotation string) retention.Pod {
	return retention.PodOf(apiPodWith(policy.Annotation, annotation))
}

func bound(uid string, window time.Duration) lease.Lease {
	return lease.Lease{State: lease.Bound, Namespace: "db", Name: "db-0", UID: uid, Window: lease.Window(window),
		BoundAt: ago(time.Minute)}
}

func held(uid string, hold, since time.Duration) lease.Lease {
	return lease.Lease{State: lease.Held, IsHold: true, Namespace: "db", Name: "db-0", UID: uid,
		Window: lease.Window(hold), Hold: lease.Window(hold),
		ReleasedAt: ago(since)}
}

func inNetwork(network string, l lease.Lease) lease.Lease {
	l.Pool.Network = network
	return l
}

func onInterface(name string, l lease.Lease) lease.Lease {
	l.Holder.IfName = name
	return l
}

func boundFor(d time.Duration, l lease.Lease) lease.Lease {
	l.BoundAt = ago(d)
	return l
}

// refs returns leases by their references, as a plan has those to extend.
func refs(leases ...lease.Lease) map[maintain.Ref]lease.Lease {
	out := map[maintain.Ref]lease.Lease{}
	for _, l := range leases {
		out[maintain.RefTo(l)] = l
	}
	return out
}

func TestMake(t *testing.T) {
	const hour = time.Hour
	follow := func(w time.Duration) []maintain.PodWindow {
		return []maintain.PodWindow{{Namespace: "db", Name: "db-0", SetWindow: lease.SetWindow{UID: "u1",
			Window: lease.Window(w)}}}
	}
	expect := func(l lease.Lease) plan { return plan{Expect: refs(l), RequeueAfter: time.Minute} }
	over := held("u0", hour, hour)
	addressed := func(addr string, l lease.Lease) lease.Lease {
		l.Address = netip.MustParseAddr(addr)
		return l
	}
	deleted := pod("60")
	deleted.Expected = false
	for _, c := range []struct {
		name   string
		pod    retention.Pod
		leases []lease.Lease
		want   plan
	}{
		{"no change", pod("60"), []lease.Lease{bound("u1", hour)}, plan{}},
		{"no lease yet", pod("60"), nil, plan{}},
		{"a new window", pod("60"), []lease.Lease{bound("u1", 0)}, plan{Follow: follow(hour)}},
		{"another window", pod("10"), []lease.Lease{bound("u1", hour)}, plan{Follow: follow(10 * time.Minute)}},
		{"one of two interfaces", pod("60"), []lease.Lease{bound("u1", hour), bound("u1", 0)},
			plan{Follow: follow(hour)}},
		{"annotation set to 0", pod("0"), []lease.Lease{bound("u1", hour)}, plan{Follow: follow(0)}},
		{"never retained", pod("0"), []lease.Lease{bound("u1", 0)}, plan{}},
		{"the lease of a former pod", pod("60"), []lease.Lease{bound("u0", 0)}, plan{}},
		{"an invalid one", pod("ten"), []lease.Lease{bound("u1", hour)}, plan{}},
		{"starting, in time", pod("60"), []lease.Lease{held("u0", hour, 10*time.Minute)},
			plan{RequeueAfter: 49 * time.Minute}},
		{"starting, late", pod("60"), []lease.Lease{held("u0", hour, hour-time.Second)},
			expect(held("u0", hour, hour-time.Second))},
		{"starting, with a minute left", pod("60"), []lease.Lease{held("u0", hour, hour-deferBelow)},
			expect(held("u0", hour, hour-deferBelow))},
		{"starting, with little more than a minute left", pod("60"),
			[]lease.Lease{held("u0", hour, hour-deferBelow-time.Millisecond)}, plan{RequeueAfter: time.Second}},
		{"starting, with two addresses", pod("60"), []lease.Lease{
			addressed("10.0.0.2", held("u0", hour, 10*time.Minute)), addressed("fd00::2", over)},
			expect(addressed("fd00::2", over))},
		{"not starting", deleted, []lease.Lease{held("u0", hour, hour)}, plan{}},
		{"held forever", pod("60"), []lease.Lease{held("u0", time.Duration(lease.Forever), hour)}, plan{}},
		{"the former pod has a sandbox", pod("60"), []lease.Lease{bound("u0", hour), over}, expect(over)},
		{"the pod has its sandbox", pod("60"), []lease.Lease{bound("u1", hour), held("u0", hour, hour)}, plan{}},
		{"the second network is not attached yet", pod("60"), []lease.Lease{bound("u1", hour),
			inNetwork("b", over)}, expect(inNetwork("b", over))},
		{"the second interface is not attached yet", pod("60"), []lease.Lease{bound("u1", hour),
			onInterface("net1", over)}, expect(onInterface("net1", over))},
		{"the second network is not attached any more", pod("60"), []lease.Lease{boundFor(deferTo, bound("u1", hour)),
			inNetwork("b", held("u0", hour, hour))}, plan{}},
	} {
		view := maintain.NodeView{Leases: c.leases, Now: now}
		got := makePlan(map[kube.Name]retention.Pod{name: c.pod}, view, nil)
		check.NoDiff(t, cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()), c.name)
	}
}
