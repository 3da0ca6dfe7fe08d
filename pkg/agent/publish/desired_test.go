package publish

import (
	"fmt"
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
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
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

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	if text == "forever" {
		return time.Duration(lease.Forever)
	}
	d, err := time.ParseDuration(text)
	must.Succeed(t, err)
	return d
}

// leaseOf returns the lease of a line of testdata/desired.txt.
func leaseOf(t *testing.T, words []string) lease.Lease {
	l, rest := bound(words[1], id1, duration(t, words[2])), words[3:]
	isHold := words[0] == "held"
	if isHold {
		l, rest = held(l, duration(t, words[3])), words[4:]
	}
	cases.Words(t, rest, map[string]func(string){
		"id": func(v string) { l.ID = v }, "uid": func(v string) { l.UID = v },
		"as": func(v string) { l.ReserveAs = v }, "network": func(v string) { l.Pool.Network = v },
		"hold": func(v string) { l.Hold = lease.Window(duration(t, v)) },
		"window": func(v string) {
			if l.Window = lease.Window(duration(t, v)); isHold {
				l.Hold = l.Window
			}
		},
		"cool-down":  func(string) { l.IsHold = false },
		"superseded": func(string) { l.Superseded = true },
		"no-pod":     func(string) { l.Namespace, l.Name = "", "" },
	})
	return l
}

// publishedOf returns the status of a line of testdata/desired.txt.
func publishedOf(t *testing.T, words []string) *ipamv1.IPReservation {
	r := &ipamv1.IPReservation{}
	s := &r.Status
	*s = ipamv1.IPReservationStatus{ID: id1, State: ipamv1.Bound, PodUID: "u1", Window: "1h0m0s",
		AddressList: "10.0.0.2", Addresses: []ipamv1.Address{{Network: "cbr0", Interface: "eth0", Address: "10.0.0.2"}}}
	cases.Words(t, words[1:], map[string]func(string){
		"empty":     func(string) { *s = ipamv1.IPReservationStatus{ID: id1, PodUID: "u1"} },
		"held":      func(string) { s.State = ipamv1.Held },
		"confirmed": func(string) { s.Confirmed = true },
		"id":        func(v string) { s.ID = v }, "uid": func(v string) { s.PodUID = v },
		"window":       func(v string) { s.Window = v },
		"until":        func(v string) { s.HeldUntil = &metav1.Time{Time: now.Wall.Add(duration(t, v))} },
		"no-addresses": func(string) { s.Addresses = nil },
	})
	for i := range s.Addresses {
		s.Addresses[i].State = s.State
	}
	return r
}

// statusText formats a status of the lease id1 as in testdata/desired.txt.
func statusText(t *testing.T, s ipamv1.IPReservationStatus) string {
	out := []string{string(s.State), s.PodUID, s.Window, s.AddressList}
	for _, a := range s.Addresses {
		out = append(out, fmt.Sprintf("%s/%s/%s=%s", a.Network, a.Interface, a.Address, a.State))
	}
	if s.Reservation != "" {
		out = append(out, "as="+s.Reservation)
	}
	if s.Confirmed {
		out = append(out, "confirmed")
	}
	if s.HeldUntil != nil {
		out = append(out, "until="+s.HeldUntil.Sub(now.Wall).String())
	}
	s.State, s.PodUID, s.Window, s.AddressList, s.Addresses, s.Reservation = "", "", "", "", nil, ""
	s.Confirmed, s.HeldUntil = false, nil
	check.NoDiff(t, gocmp.Diff(ipamv1.IPReservationStatus{ID: id1}, s), "other fields")
	return strings.Join(out, " ")
}

func TestMake(t *testing.T) {
	for _, c := range cases.Read(t, "testdata/desired.txt")[1:] {
		t.Run(c.Name, func(t *testing.T) {
			var leases []lease.Lease
			var pod retention.Pod
			var existing *ipamv1.IPReservation
			for _, line := range c.Given {
				switch words := strings.Fields(line); words[0] {
				case "ready":
					pod = retention.Pod{UID: words[1], Ready: true}
				case "published":
					existing = publishedOf(t, words)
				default:
					leases = append(leases, leaseOf(t, words))
				}
			}
			view := maintain.NodeView{Leases: leases, Now: now}
			plan := makePlan(node, view, map[kube.Name]retention.Pod{podsNS: pod},
				map[kube.Name]*ipamv1.IPReservation{object: existing})
			var got []string
			for name, w := range plan.Objects {
				check.Equal(t, name, object)
				check.Equal(t, w.Object.Spec, ipamv1.IPReservationSpec{
					PodName: "db-0", NodeName: "node1", NodeUID: node.UID})
				got = append(got, statusText(t, w.Object.Status))
			}
			if plan.RequeueAfter != 0 {
				got = append(got, "after "+plan.RequeueAfter.String())
			}
			check.NoDiff(t, gocmp.Diff(c.Want, got))
			check.Empty(t, plan.Release, "releases")
		})
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
	check.Empty(t, with("3333333333333333").Release, "another id")
	check.Empty(t, with("").Release, "no id")
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
		check.Equal(t, strings.Join(compare(&want, existing), " "), c.want, c.name)
	}
	check.Equal(t, strings.Join(compare(&want, nil), " "), "spec status", "no object")
}
