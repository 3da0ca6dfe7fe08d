package retention

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

var (
	now  = lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "b"}
	name = kube.Name{Namespace: "db", Name: "db-0"}
	set  = Owner{Group: "apps", Kind: "StatefulSet", Name: "db"}
)

func ago(d time.Duration) lease.Instant {
	return lease.Instant{Wall: now.Wall.Add(-d), Boot: now.Boot - d, BootID: "b"}
}

func pod(annotation string) Pod {
	return asking(Pod{Name: name, UID: "u1", Owner: set, Expected: true}, policy.Annotation, annotation)
}

// asking returns a pod with other annotations, given as keys and values.
func asking(p Pod, keysAndValues ...string) Pod {
	annotations := map[string]string{}
	for i := 0; i < len(keysAndValues); i += 2 {
		annotations[keysAndValues[i]] = keysAndValues[i+1]
	}
	of := podOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
	p.Request, p.Invalid = of.Request, of.Invalid
	return p
}

func TestDecide(t *testing.T) {
	with := func(p Pod, change func(*Pod)) Pod { change(&p); return p }
	by := func(group, kind string) Pod {
		return with(pod("10"), func(p *Pod) { p.Owner = Owner{Group: group, Kind: kind, Name: "x"} })
	}
	named := func(p Pod, generateName, name, label string) Pod {
		p.GenerateName, p.Name.Name, p.SetPodName = generateName, name, label
		return p
	}
	for _, c := range []struct {
		name string
		pod  Pod
		want string // window and owner, or an error
	}{
		{"minutes", pod("10"), "10m0s "},
		{"a duration", pod("90s"), "1m30s "},
		{"none", pod("0"), "0s "},
		{"forever", pod("forever"), "forever StatefulSet.apps/db"},
		{"forever, without a controller", with(pod("forever"), func(p *Pod) { p.Owner = Owner{} }),
			"forever "},
		{"forever, of Kruise", with(pod("forever"), func(p *Pod) { p.Owner.Group = "apps.kruise.io" }),
			"forever StatefulSet.apps.kruise.io/db"},
		{"no annotation", asking(pod("10")), "0s "},
		{"an empty one", pod(""), "error"},
		{"an invalid one", pod("ten"), "error"},
		{"of an operator", by("example.com", "Database"), "10m0s "},
		{"of a ReplicaSet", named(by("apps", "ReplicaSet"), "db-", "db-x7k2p", ""), "0s "},
		{"of a Deployment of one's own kind", named(by("example.com", "Database"), "db-", "db-x7k2p", ""), "0s "},
		{"a suffix without a letter", named(by("example.com", "Database"), "db-", "db-45678", ""), "0s "},
		{"a long name that the API server has cut", named(by("kubevirt.io", "VirtualMachineInstance"),
			"virt-launcher-"+strings.Repeat("x", 50)+"-", "virt-launcher-"+strings.Repeat("x", 44)+"x7k2p", ""), "0s "},
		{"of a virtual machine", named(by("kubevirt.io", "VirtualMachineInstance"), "virt-launcher-vm-",
			"virt-launcher-vm-x7k2p", ""), "0s "},
		{"of nobody, with a generated name", named(by("", ""), "shell-", "shell-x7k2p", ""), "0s "},
		{"of nobody, with a name of its own", named(by("", ""), "", "shell-x7k2p", ""), "10m0s "},
		{"of a pipeline, with a name that is not generated", named(by("tekton.dev", "TaskRun"), "", "run-pod", ""),
			"10m0s "},
		{"a name that was chosen beside generateName", named(by("example.com", "Database"), "db-", "main", ""),
			"10m0s "},
		{"of a StatefulSet", named(by("apps", "StatefulSet"), "db-", "db-0", "db-0"), "10m0s "},
		{"of a StatefulSet, with an ordinal like a suffix", named(by("apps", "StatefulSet"), "db-", "db-45678",
			"db-45678"), "10m0s "},
		{"of a set like it", named(by("example.com", "Ring"), "db-", "db-45678", "db-45678"), "10m0s "},
		{"of a set like it, with another pod's label", named(by("example.com", "Ring"), "db-", "db-x7k2p", "db-0"),
			"0s "},
		{"of a set like it, without the label", named(by("example.com", "Ring"), "db-", "db-10", ""), "10m0s "},
		{"with five digits that are no suffix", named(by("example.com", "Ring"), "db-", "db-10000", ""), "10m0s "},
		{"with a number that is no ordinal", named(by("example.com", "Ring"), "db-", "db-010", ""), "0s "},
		{"of a CloneSet, without a volume", named(by("apps.kruise.io", "CloneSet"), "db-", "db-x7k2p", ""), "0s "},
		{"of a CloneSet, with a volume of its own and a generated name", with(named(by("apps.kruise.io", "CloneSet"),
			"db-", "db-x7k2p", ""), func(p *Pod) { p.OwnClaim = true }), "10m0s "},
		{"of another owner, with a volume of its own", with(named(by("example.com", "Database"), "db-", "db-x7k2p", ""),
			func(p *Pod) { p.OwnClaim = true }), "0s "},
		{"an invalid one of a Job", asking(named(by("batch", "Job"), "db-", "db-x7k2p", ""), policy.Annotation, "ten"),
			"error"},
	} {
		w, err := decide(c.pod)
		got := w.Window.String() + " " + w.Owner
		if w.Namespace != c.pod.Namespace || w.Name != c.pod.Name.Name || w.UID != c.pod.UID {
			t.Errorf("%s: of pod %s/%s, UID %s", c.name, w.Namespace, w.Name, w.UID)
		}
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, err)
		}
	}
}

func bound(uid string, window time.Duration) lease.Lease {
	return lease.Lease{State: lease.Bound, Namespace: "db", Name: "db-0", UID: uid, Window: lease.Window(window),
		BoundAt: ago(time.Minute)}
}

func held(uid string, hold, since time.Duration) lease.Lease {
	return lease.Lease{State: lease.Held, Firm: true, Namespace: "db", Name: "db-0", UID: uid,
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
		return []maintain.PodWindow{{Namespace: "db", Name: "db-0", UID: "u1", Window: lease.Window(w)}}
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
		pod    Pod
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
		got := makePlan(map[kube.Name]Pod{name: c.pod}, view, nil)
		if (c.pod.Invalid != "") != (len(got.Invalid) == 1) {
			t.Errorf("%s: invalid: %v", c.name, got.Invalid)
		}
		got.Invalid = nil
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestParseOwner(t *testing.T) {
	for _, c := range []struct{ text, pod, want string }{
		{"StatefulSet.apps/db", "db-0", "/apis/apps/v1/namespaces/ns/statefulsets/db 0"},
		{"StatefulSet.apps/db", "db-12", "/apis/apps/v1/namespaces/ns/statefulsets/db 12"},
		{"StatefulSet.apps.kruise.io/a.b-c", "a.b-c-3",
			"/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/a.b-c 3"},
		{"StatefulSet.apps/db", "db-01", ""},
		{"StatefulSet.apps/db", "db--1", ""},
		{"StatefulSet.apps/db", "db-x", ""},
		{"StatefulSet.apps/db", "other-0", ""},
		{"StatefulSet.example.com/db", "db-0", ""},
		{"StatefulSet.apps/", "-0", ""},
		{"Job.batch/db", "db-0", ""},
		{"", "db-0", ""},
	} {
		path, ordinal, ok := parseOwner(c.text, kube.Name{Namespace: "ns", Name: c.pod})
		got := fmt.Sprint(path, " ", ordinal)
		if !ok {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s of %q: %q, want %q", c.pod, c.text, got, c.want)
		}
	}
}
