package retention

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
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
		OwnerReferences: controlled("apps/v1", "StatefulSet", "db"), Annotations: map[string]string{}}}
	for i := 0; i < len(keysAndValues); i += 2 {
		p.Annotations[keysAndValues[i]] = keysAndValues[i+1]
	}
	return p
}

func pod(annotation string) Pod { return podOf(apiPodWith(policy.Annotation, annotation)) }

func TestWindowOfAPod(t *testing.T) {
	asks := func(annotation string, change func(*corev1.Pod)) *corev1.Pod {
		p := apiPodWith(policy.Annotation, annotation)
		change(p)
		return p
	}
	by := func(group, kind string) *corev1.Pod {
		return asks("10", func(p *corev1.Pod) { p.OwnerReferences = controlled(group+"/v1", kind, "x") })
	}
	named := func(p *corev1.Pod, generateName, name, label string) *corev1.Pod {
		p.GenerateName, p.Name, p.Labels = generateName, name, map[string]string{appsv1.StatefulSetPodNameLabel: label}
		return p
	}
	claiming := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + p.Name}}}}
		return p
	}
	sharing := func(p *corev1.Pod) *corev1.Pod {
		claiming(p).Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "data-db"
		return p
	}
	pod := func(annotation string) *corev1.Pod { return asks(annotation, func(*corev1.Pod) {}) }
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string // window and owner, or an error
	}{
		{"minutes", pod("10"), "10m0s "},
		{"a duration", pod("90s"), "1m30s "},
		{"none", pod("0"), "0s "},
		{"forever", pod("forever"), "forever StatefulSet.apps/db"},
		{"forever, without a controller", asks("forever", func(p *corev1.Pod) { p.OwnerReferences = nil }),
			"forever "},
		{"forever, of Kruise", asks("forever", func(p *corev1.Pod) {
			p.OwnerReferences[0].APIVersion = "apps.kruise.io/v1beta1"
		}),
			"forever StatefulSet.apps.kruise.io/db"},
		{"no annotation", apiPodWith(), "0s "},
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
		{"of a CloneSet, with a volume of its own and a generated name", claiming(named(
			by("apps.kruise.io", "CloneSet"), "db-", "db-x7k2p", "")), "10m0s "},
		{"of a CloneSet, with a shared volume", sharing(named(by("apps.kruise.io", "CloneSet"), "db-", "db-x7k2p", "")),
			"0s "},
		{"of another owner, with a volume of its own",
			claiming(named(by("example.com", "Database"), "db-", "db-x7k2p", "")), "0s "},
		{"an invalid one of a Job", named(asks("ten", func(*corev1.Pod) {}), "db-", "db-x7k2p", ""), "error"},
	} {
		p := podOf(c.pod)
		got := p.Window.String() + " " + p.Owner
		if p.Invalid != "" {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s (%s)", c.name, got, c.want, p.Invalid)
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
func refs(leases ...lease.Lease) map[ipam.Ref]lease.Lease {
	out := map[ipam.Ref]lease.Lease{}
	for _, l := range leases {
		out[ipam.RefTo(l)] = l
	}
	return out
}

func TestMake(t *testing.T) {
	const hour = time.Hour
	follow := func(w time.Duration) []ipam.PodWindow {
		return []ipam.PodWindow{{Namespace: "db", Name: "db-0", UID: "u1", Window: lease.Window(w)}}
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
		view := ipam.NodeView{Leases: c.leases, Now: now}
		got := makePlan(map[kube.Name]Pod{name: c.pod}, view, nil)
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
