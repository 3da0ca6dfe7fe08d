package retention

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
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
	letters := strings.NewReplacer("x*50", strings.Repeat("x", 50), "x*44", strings.Repeat("x", 44))
	for _, c := range cases.Read(t, "testdata/windows.txt")[1:] {
		pod := apiPodWith()
		claim := func(name string) {
			pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		}
		cases.Words(t, strings.Fields(letters.Replace(strings.Join(c.Given, " "))), map[string]func(string){
			"window":  func(v string) { pod.Annotations[policy.Annotation] = v },
			"version": func(v string) { pod.OwnerReferences[0].APIVersion = v },
			"owner": func(v string) {
				group, kind, isOwner := strings.Cut(v, "/")
				if pod.OwnerReferences = controlled(group+"/v1", kind, "x"); !isOwner {
					pod.OwnerReferences = nil
				}
			},
			"generate": func(v string) { pod.GenerateName = v },
			"name":     func(v string) { pod.Name = v },
			"label":    func(v string) { pod.Labels = map[string]string{appsv1.StatefulSetPodNameLabel: v} },
			"claims":   func(string) { claim("data-" + pod.Name) },
			"shares":   func(string) { claim("data-db") },
		})
		p := PodOf(pod)
		got := strings.TrimSpace(p.Window.String() + " " + p.Owner)
		if p.Invalid != "" {
			got = "error"
		}
		check.Equal(t, got, c.Want[0], c.Name, p.Invalid)
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
