package pin

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/reservations"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The size of the goals (docs/performance.md, "Goals").
const (
	manyReservations = 50_000
	manyNodes        = 5_000
)

// big is a cluster of that size, as the informers would have it after the first list: half of the
// reservations have a pod.
func big(b *testing.B) *cluster {
	b.Helper()
	reader := nodesOnly{nodes: map[string]*corev1.Node{}}
	for i := range manyNodes {
		n := node(fmt.Sprintf("node-%d", i))
		for j := range 20 {
			n.Labels[fmt.Sprintf("example.com/label-%d", j)] = fmt.Sprintf("value-%d", j)
		}
		reader.nodes[n.Name] = n
	}
	clock := time.Now()
	c := clusterOf(b, reader.nodes, &clock)
	for i := range manyReservations {
		pod, on := fmt.Sprintf("database-%d", i), fmt.Sprintf("node-%d", i%manyNodes)
		c.add(b, reservations.View(&ipam.IPReservation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod + "-01234567",
				UID:             types.UID(fmt.Sprintf("0e1d2c3b-0000-4000-8000-%012d", i)),
				ResourceVersion: fmt.Sprint(100000 + i), Labels: map[string]string{ipam.LabelNodeHash: "x",
					ipam.LabelPodHash: "y"}},
			Spec: ipam.IPReservationSpec{PodName: pod, NodeName: on, NodeUID: "uid-1"},
			Status: ipam.IPReservationStatus{ID: fmt.Sprintf("%016x", i), State: ipam.Bound, Window: "1h0m0s",
				PodUID:      fmt.Sprintf("0e1d2c3b-0000-4000-9000-%012d", i),
				AddressList: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}}))
		if i%2 == 0 {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod,
				UID:             types.UID(fmt.Sprintf("0e1d2c3b-0000-4000-9000-%012d", i)),
				ResourceVersion: fmt.Sprint(200000 + i), Annotations: map[string]string{policy.Annotation: "1h"}},
				Spec: corev1.PodSpec{NodeName: on, SchedulerName: "default-scheduler"}}
			p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}}
			c.add(b, viewPod(p, nil))
		}
	}
	return c
}

// BenchmarkWebhook is what the webhook itself costs, and what its knowledge weighs, in a big
// cluster; make bench-scale RESERVATIONS=50000 measures the whole manager.
func BenchmarkWebhook(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := big(b)
	runtime.GC()
	runtime.ReadMemStats(&after)

	w := webhookOf(c)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("database-%d", i*7919%manyReservations),
			Namespace: "db",
			Labels:    map[string]string{"app": "database"}, Annotations: map[string]string{policy.Annotation: "1h"}},
			Spec: corev1.PodSpec{SchedulerName: "default-scheduler",
				Containers: []corev1.Container{{Name: "main", Image: "example.com/db:1"}}}}
		object, err := json.Marshal(&pod)
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		r := ask(w, object)
		took = append(took, time.Since(start))
		if !r.Allowed || len(r.Patches) == 0 {
			b.Fatalf("%+v", r)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "views-MiB")
}

// BenchmarkReservationName is an admission of a pod whose reservation name has many holds.
func BenchmarkReservationName(b *testing.B) {
	clock := noon
	c := clusterOf(b, map[string]*corev1.Node{}, &clock)
	nodes := c.reader.(nodesOnly).nodes
	for i := range 10_000 {
		on := fmt.Sprintf("node-%d", i%100)
		nodes[on] = node(on)
		c.add(b, left(fmt.Sprint(i), on, time.Minute))
	}
	w := webhookOf(c)
	object, err := json.Marshal(ofDeployment())
	must(b, err)
	for b.Loop() {
		if r := ask(w, object); !r.Allowed || len(r.Patches) == 0 {
			b.Fatalf("%+v", r)
		}
	}
}
