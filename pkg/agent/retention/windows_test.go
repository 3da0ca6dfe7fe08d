package retention

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// apiPodWith returns db-0 of a StatefulSet with annotations, given as keys and values.
func apiPodWith(keysAndValues ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "1",
		OwnerReferences: controlled("apps/v1", "StatefulSet", "db"), Annotations: map[string]string{}}}
	for i := 0; i < len(keysAndValues); i += 2 {
		p.Annotations[keysAndValues[i]] = keysAndValues[i+1]
	}
	return p
}

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
		p := PodOf(c.pod)
		got := p.Window.String() + " " + p.Owner
		if p.Invalid != "" {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s (%s)", c.name, got, c.want, p.Invalid)
		}
	}
}

// asking is a pod with a generated name.
func asking(annotation, reserveAs string) Pod {
	p := apiPodWith(policy.Annotation, annotation, policy.ReserveAs, reserveAs)
	p.Name, p.GenerateName = "registry-x7k2p", "registry-"
	p.OwnerReferences = controlled("apps/v1", "ReplicaSet", "registry")
	return PodOf(p)
}

func TestWindowWithAReservationName(t *testing.T) {
	for _, c := range []struct {
		name, annotation, reserveAs string
		want                        string // window, owner and reservation name, or an error
	}{
		{"a generated name", "10", "registry", "10m0s  registry"},
		{"forever", "forever", "registry", "forever  registry"},
		{"no retention", "0", "registry", "0s  "},
		{"an invalid name", "10", "a.b", `annotation leasehold.dev/reserve-as: "a.b" is not a reservation name`},
		{"an empty name", "10", "", `annotation leasehold.dev/reserve-as: "" is not a reservation name`},
		{"an invalid name without retention", "0", "a.b", "0s  "},
		{"an invalid window", "ten", "registry", "annotation io.kubernetes.cri/reserved-ip-duration"},
	} {
		p := asking(c.annotation, c.reserveAs)
		got := fmt.Sprint(p.Window, " ", p.Owner, " ", p.ReserveAs)
		if p.Invalid != "" {
			got = p.Invalid
		}
		if got != c.want && (p.Invalid == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	ofSet := PodOf(apiPodWith(policy.Annotation, "forever", policy.ReserveAs, "registry"))
	if ofSet.Owner != "" || ofSet.ReserveAs != "registry" || ofSet.Invalid != "" {
		t.Errorf("of a StatefulSet: %+v", ofSet)
	}
}
