package publish

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

var (
	now    = lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: 9 * time.Hour, BootID: "b"}
	node   = nodeIdentity{"node1", "5f1c9a02-1111-2222-3333-444455556666"}
	podsNS = kube.Name{Namespace: "db", Name: "db-0"}
	object = kube.Name{Namespace: "db", Name: "db-0-5f1c9a02"}
)

func ago(d time.Duration) lease.Instant {
	return lease.Instant{Wall: now.Wall.Add(-d), Boot: now.Boot - d, BootID: "b"}
}

func bound(addr, id string, since time.Duration) lease.Lease {
	return lease.Lease{
		ID: id, Address: netip.MustParseAddr(addr), Pool: lease.Pool{DataDir: "/d", Network: "cbr0"},
		State:     lease.Bound,
		Namespace: "db", Name: "db-0", UID: "u1", Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"},
		Window: lease.Window(time.Hour), BoundAt: ago(since),
	}
}

func held(l lease.Lease, since time.Duration) lease.Lease {
	l.State, l.IsHold, l.Hold, l.ReleasedAt = lease.Held, true, l.Window, ago(since)
	return l
}

const id1, id2 = "1111111111111111", "2222222222222222"

func status(change func(*ipamv1.IPReservationStatus)) ipamv1.IPReservationStatus {
	s := ipamv1.IPReservationStatus{
		ID: id1, State: ipamv1.Bound, PodUID: "u1", Window: "1h0m0s", AddressList: "10.0.0.2",
		Addresses: []ipamv1.Address{{Network: "cbr0", Interface: "eth0", Address: "10.0.0.2"}},
	}
	change(&s)
	for i := range s.Addresses {
		s.Addresses[i].State = cmp.Or(s.Addresses[i].State, s.State)
	}
	return s
}

func TestMake(t *testing.T) {
	type testCase struct {
		name     string
		leases   []lease.Lease
		pod      retention.Pod
		existing *ipamv1.IPReservation
		want     *ipamv1.IPReservationStatus
		after    time.Duration
	}
	until := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Wall.Add(d)} }
	is := func(change func(*ipamv1.IPReservationStatus)) *ipamv1.IPReservationStatus {
		s := status(change)
		return &s
	}
	change := func(l lease.Lease, f func(*lease.Lease)) lease.Lease { f(&l); return l }
	two := []lease.Lease{bound("fd00::2", id2, time.Minute), bound("10.0.0.2", id1, time.Minute)}
	other := change(bound("10.0.0.1", id2, time.Minute), func(l *lease.Lease) { l.Pool.Network = "cbr1" })
	both := func(s *ipamv1.IPReservationStatus) {
		s.AddressList = "10.0.0.2,fd00::2"
		s.Addresses = append(s.Addresses, ipamv1.Address{Network: "cbr0", Interface: "eth0", Address: "fd00::2"})
		s.Confirmed = true
	}
	mixed := func(s *ipamv1.IPReservationStatus) { both(s); s.Addresses[1].State = ipamv1.Held }
	for _, c := range []testCase{
		{name: "no leases"},
		{name: "a sandbox after 5 s", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "a reservation name", leases: []lease.Lease{change(bound("10.0.0.2", id1, time.Hour),
			func(l *lease.Lease) { l.ReserveAs = "registry" })},
			want: is(func(s *ipamv1.IPReservationStatus) { s.Reservation, s.Confirmed = "registry", true })},
		{name: "a sandbox after 5 s, pod Ready", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			pod:  retention.Pod{UID: "u1", Ready: true},
			want: is(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
		{name: "a sandbox after 5 s, another pod of the name Ready", leases: []lease.Lease{bound("10.0.0.2", id1,
			5*time.Second)},
			pod:  retention.Pod{UID: "u0", Ready: true},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "confirmed before, same pod", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: ipamv1.IPReservationStatus{ID: id1, PodUID: "u1", Confirmed: true}},
			want:     is(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
		{name: "confirmed before, former pod", leases: []lease.Lease{bound("10.0.0.2", id1,
			30*time.Second-time.Nanosecond)},
			existing: &ipamv1.IPReservation{Status: ipamv1.IPReservationStatus{ID: id1, PodUID: "u0", Confirmed: true}},
			want:     is(func(*ipamv1.IPReservationStatus) {}), after: 10*time.Millisecond + 1},
		{name: "confirmed before, another lease", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: ipamv1.IPReservationStatus{ID: id2, PodUID: "u1", Confirmed: true}},
			want:     is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "away for 3 s, the hold ends soon", leases: []lease.Lease{change(
			held(bound("10.0.0.2", id1, 10*time.Minute), 3*time.Second),
			func(l *lease.Lease) { l.Hold = lease.Window(20 * time.Second) })},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil, s.Confirmed = ipamv1.Held, until(17*time.Second), true
			}), after: 17*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.Confirmed, s.HeldUntil = ipamv1.Held, "u0", true, until(time.Minute)
			})},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.Confirmed, s.HeldUntil = ipamv1.Held, "u0", true, until(time.Minute)
			}), after: 25*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago with another window", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.Window, s.HeldUntil = ipamv1.Held, "u0", "10m0s", until(time.Minute)
			})},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago to one more address", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.Addresses, s.HeldUntil = ipamv1.Held, "u0", nil, until(time.Minute)
			})},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago, the hold seems to be over",
			leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.HeldUntil = ipamv1.Held, "u0", until(25*time.Second)
			})},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago and Ready", leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			pod: retention.Pod{UID: "u1", Ready: true},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.State, s.PodUID, s.HeldUntil = ipamv1.Held, "u0", until(time.Minute)
			})},
			want: is(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
		{name: "returned 5 s ago, before its hold was published",
			leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.PodUID, s.Confirmed = "u0", true
			})},
			want:  is(func(s *ipamv1.IPReservationStatus) { s.PodUID, s.Confirmed = "u0", true }),
			after: 25*time.Second + 10*time.Millisecond},
		{name: "returned 5 s ago, and the former pod was not confirmed",
			leases: []lease.Lease{bound("10.0.0.2", id1, 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.PodUID = "u0"
			})},
			want: is(func(*ipamv1.IPReservationStatus) {}), after: 25*time.Second + 10*time.Millisecond},
		{name: "away for 3 s", leases: []lease.Lease{held(bound("10.0.0.2", id1, 10*time.Minute), 3*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
			want:     is(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true }),
			after:    2*time.Second + 10*time.Millisecond},
		{name: "away for 3 s, with another window",
			leases: []lease.Lease{held(bound("10.0.0.2", id1, 10*time.Minute), 3*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {
				s.Confirmed, s.Window = true, "10m0s"
			})},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil, s.Confirmed = ipamv1.Held, until(time.Hour-3*time.Second), true
			}), after: time.Hour - 3*time.Second + 10*time.Millisecond},
		{name: "away for 3 s, and was not confirmed",
			leases:   []lease.Lease{held(bound("10.0.0.2", id1, 10*time.Second), 3*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) {})},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil = ipamv1.Held, until(time.Hour-3*time.Second)
			}), after: time.Hour - 3*time.Second + 10*time.Millisecond},
		{name: "away for 5 s", leases: []lease.Lease{held(bound("10.0.0.2", id1, 10*time.Minute), 5*time.Second)},
			existing: &ipamv1.IPReservation{Status: status(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil, s.Confirmed = ipamv1.Held, until(time.Hour-5*time.Second), true
			}), after: time.Hour - 5*time.Second + 10*time.Millisecond},
		{name: "a sandbox after 30 s", leases: []lease.Lease{bound("10.0.0.2", id1, 30*time.Second)},
			want: is(func(s *ipamv1.IPReservationStatus) { s.Confirmed = true })},
		{name: "two families", leases: two, want: is(both)},
		{name: "two networks", leases: []lease.Lease{other, bound("10.0.0.2", id1, time.Minute)},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.AddressList, s.Confirmed = "10.0.0.2,10.0.0.1", true
				s.Addresses = append(s.Addresses,
					ipamv1.Address{Network: "cbr1", Interface: "eth0", Address: "10.0.0.1"})
			})},
		{name: "held", leases: []lease.Lease{held(bound("10.0.0.2", id1, 10*time.Minute), time.Minute)},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil, s.Confirmed = ipamv1.Held, until(59*time.Minute), true
			}), after: 59*time.Minute + 10*time.Millisecond},
		{name: "held after a short life", leases: []lease.Lease{held(bound("10.0.0.2", id1, 61*time.Second),
			time.Minute)},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.HeldUntil = ipamv1.Held, until(59*time.Minute)
			}),
			after: 59*time.Minute + 10*time.Millisecond},
		{name: "held forever", leases: []lease.Lease{held(change(bound("10.0.0.2", id1, time.Hour),
			func(l *lease.Lease) { l.Window = lease.Forever }), time.Minute)},
			want: is(func(s *ipamv1.IPReservationStatus) {
				s.State, s.Window, s.Confirmed = ipamv1.Held, "forever", true
			})},
		{name: "one address bound, one held", leases: []lease.Lease{
			bound("10.0.0.2", id1, time.Minute), held(bound("fd00::2", id2, time.Hour), time.Minute)},
			want: is(mixed), after: 59*time.Minute + 10*time.Millisecond},
		{name: "one address bound, one held since by another pod of the name", leases: []lease.Lease{
			bound("10.0.0.2", id1, time.Minute),
			change(held(bound("fd00::2", id2, time.Hour), time.Second), func(l *lease.Lease) { l.UID = "u0" })},
			want: is(mixed), after: time.Hour - time.Second + 10*time.Millisecond},
		{name: "an expired hold", leases: []lease.Lease{held(bound("10.0.0.2", id1, 3*time.Hour), time.Hour)}},
		{name: "no window", leases: []lease.Lease{change(bound("10.0.0.2", id1, time.Minute),
			func(l *lease.Lease) { l.Window = 0 })}},
		{name: "a cool-down", leases: []lease.Lease{change(held(bound("10.0.0.2", id1, time.Hour), time.Minute),
			func(l *lease.Lease) { l.IsHold = false })}},
		{name: "superseded", leases: []lease.Lease{change(bound("10.0.0.2", id1, time.Hour),
			func(l *lease.Lease) { l.Superseded = true })}},
		{name: "without a pod", leases: []lease.Lease{change(bound("10.0.0.2", id1, time.Hour),
			func(l *lease.Lease) { l.Namespace, l.Name = "", "" })}},
	} {
		view := maintain.NodeView{Leases: c.leases, Now: now}
		plan := makePlan(node, view, map[kube.Name]retention.Pod{podsNS: c.pod},
			map[kube.Name]*ipamv1.IPReservation{object: c.existing})
		var got *ipamv1.IPReservationStatus
		for name, w := range plan.Objects {
			if name != object || w.Object.Spec != (ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1",
				NodeUID: node.UID}) {
				t.Errorf("%s: object %s with %+v", c.name, name, w.Object.Spec)
			}
			got = &w.Object.Status
		}
		if diff := gocmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if plan.RequeueAfter != c.after {
			t.Errorf("%s: requeue after %s, want %s", c.name, plan.RequeueAfter, c.after)
		}
		if len(plan.Release) > 0 {
			t.Errorf("%s: releases %v", c.name, plan.Release)
		}
	}
}

func TestSpecRelease(t *testing.T) {
	leases := []lease.Lease{bound("10.0.0.2", id1, time.Minute), bound("fd00::2", id2, time.Minute)}
	view := maintain.NodeView{Leases: leases, Now: now}
	with := func(release string) plan {
		existing := &ipamv1.IPReservation{Spec: ipamv1.IPReservationSpec{Release: release}}
		return makePlan(node, view, nil, map[kube.Name]*ipamv1.IPReservation{object: existing})
	}
	if got := with(id1).Release; len(got) != 2 || got[0].ID != id1 || got[1].ID != id2 {
		t.Errorf("the lease's id: releases %v", got)
	}
	other := with("3333333333333333")
	if len(other.Release) != 0 {
		t.Errorf("another id: releases %v", other.Release)
	}
	if got := with(""); len(got.Release) != 0 {
		t.Errorf("no id: %+v", got)
	}
}

func TestCompare(t *testing.T) {
	view := maintain.NodeView{Leases: []lease.Lease{held(bound("10.0.0.2", id1, time.Hour), time.Minute)}, Now: now}
	want := makePlan(node, view, nil, nil).Objects[object].Object
	end := func(later time.Duration) func(*ipamv1.IPReservation) {
		return func(r *ipamv1.IPReservation) {
			r.Status.HeldUntil = &metav1.Time{Time: r.Status.HeldUntil.Add(later)}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*ipamv1.IPReservation)
		want   string
	}{
		{"equal", func(*ipamv1.IPReservation) {}, ""},
		{"a user's release request, annotation, label and owner", func(r *ipamv1.IPReservation) {
			r.Spec.Release = id2
			r.Annotations = map[string]string{"leasehold.dev/pin-abandoned": id1}
			r.Labels["team"] = "db"
			r.OwnerReferences = append([]metav1.OwnerReference{{Kind: "ConfigMap", UID: "c"}}, r.OwnerReferences...)
		}, ""},
		{"an end 2 s later", end(2 * time.Second), ""},
		{"an end 2 s earlier", end(-2 * time.Second), ""},
		{"an end more than 2 s later", end(2*time.Second + 1), "status"},
		{"another node", func(r *ipamv1.IPReservation) { r.Spec.NodeName = "node2" }, "spec"},
		{"another pod and an end 1 s later", func(r *ipamv1.IPReservation) {
			r.Spec.PodName = "x"
			end(time.Second)(r)
		}, "spec"},
		{"no end", func(r *ipamv1.IPReservation) { r.Status.HeldUntil = nil }, "status"},
		{"another state", func(r *ipamv1.IPReservation) { r.Status.State = ipamv1.Bound }, "status"},
		{"no status yet", func(r *ipamv1.IPReservation) { r.Status = ipamv1.IPReservationStatus{} },
			"status"},
		{"no owner", func(r *ipamv1.IPReservation) { r.OwnerReferences = nil }, "spec"},
		{"a lost label", func(r *ipamv1.IPReservation) { delete(r.Labels, ipamv1.LabelPodHash) }, "spec"},
	} {
		existing := want.DeepCopy()
		c.change(existing)
		if got := strings.Join(compare(&want, existing), " "); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if got := strings.Join(compare(&want, nil), " "); got != "spec status" {
		t.Errorf("no object: %+v", got)
	}
}
