package simulated

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// memoryGoal is in MiB, of a manager.
const memoryGoal = 300

// TestManagers measures the memory of the managers, and admissions, with many reservations and
// without agents.
func TestManagers(t *testing.T) {
	r := start(t)
	c := population{nodes: r.number("NODES", 50)}
	c.reservations = r.number("RESERVATIONS", 10*c.nodes)
	r.fill(c)
	r.startManagers()
	r.sayMemory("after the start")
	r.sayRequests("after the start", func() {})
	r.sayRequests("without a change", func() {})
	r.sayRequests("with 100 pods recreated", func() { r.recreate(c, 100) })
	r.admissions(c)
	if peak := r.sayMemory("after the load"); peak > memoryGoal {
		r.Errorf("a manager takes up to %d MiB, want at most %d", peak, memoryGoal)
	}
}

// sayMemory logs how much memory the programs take, and returns the peak of the managers in MiB.
func (r *rig) sayMemory(when string) (peak int) {
	for _, name := range []string{managerName(0), managerName(1), cluster.APIServer} {
		status, err := os.ReadFile(fmt.Sprintf("%s/proc/%d/status", r.cluster.Root(cluster.Control),
			r.control().Services()[name]))
		r.must(err)
		mib := map[string]int{}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
				kib, err := strconv.Atoi(f[1])
				r.must(err)
				mib[f[0]] = kib >> 10
			}
		}
		r.Logf("memory of %s %s: %d MiB, at most %d", name, when, mib["VmRSS:"], mib["VmHWM:"])
		if name != cluster.APIServer {
			peak = max(peak, mib["VmHWM:"])
		}
	}
	return peak
}

// sayRequests calls do, waits, and logs how many requests the managers have sent to the API server
// meanwhile.
func (r *rig) sayRequests(when string, do func()) {
	const wait = time.Minute
	var before [replicas]inspect.Metrics
	for i := range replicas {
		before[i] = r.metrics(i)
	}
	began := time.Now()
	do()
	time.Sleep(time.Until(began.Add(wait)))
	for i := range replicas {
		now, sent := r.metrics(i), ""
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			count := func(m inspect.Metrics) float64 { return m.Sum("rest_client_requests_total", "method="+method) }
			sent += fmt.Sprintf(" %s %.0f", method, count(now)-count(before[i]))
		}
		r.Logf("requests of %s in %v %s:%s", managerName(i), time.Since(began).Round(time.Second), when, sent)
	}
}

// metrics returns the metrics of a replica.
func (r *rig) metrics(i int) inspect.Metrics {
	response, err := http.Get(fmt.Sprintf("http://%v:%d/metrics", r.cluster.ControlAddr(), metricsPort+portsApart*i))
	r.must(err)
	defer response.Body.Close()
	m, err := inspect.ReadMetrics(response.Body)
	r.must(err)
	return m
}

// admissions asks the webhook about pods that are away, as the API server does, 50 times a second.
// They are dry runs: the manager remembers nothing of them.
func (r *rig) admissions(c population) {
	const rate, count = 50, 1000
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	pinned := 0
	steadily(count, rate, func(i int) {
		review := review(c.pod(5 * i % c.reservations))
		began := time.Now()
		answer, err := r.ask(client, review)
		mu.Lock()
		defer mu.Unlock()
		took, failed = append(took, time.Since(began)), errors.Join(failed, err)
		if strings.Contains(answer, "patch") {
			pinned++
		}
	})
	r.must(failed)
	r.Logf("%d admissions, %d with a patch: %s", count, pinned, spread(took))
}

func (r *rig) ask(client *http.Client, review []byte) (string, error) {
	response, err := client.Post(fmt.Sprintf("https://%v:%d/pin", r.cluster.ControlAddr(), webhookPort),
		"application/json", bytes.NewReader(review))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && !bytes.Contains(answer, []byte(`"allowed":true`)) {
		err = fmt.Errorf("the webhook answers %s: %s", response.Status, answer)
	}
	return string(answer), err
}

func review(p *corev1.Pod) []byte {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.Spec.SchedulerName, p.Spec.RestartPolicy = corev1.DefaultSchedulerName, corev1.RestartPolicyAlways
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // a pod can be written
	}
	text, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: uuid.NewUUID(), Kind: metav1.GroupVersionKind{Version: "v1",
			Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Name: p.Name,
			Namespace: p.Namespace, Operation: admissionv1.Create, DryRun: new(true),
			Object: runtime.RawExtension{Raw: raw}}})
	if err != nil {
		panic(err)
	}
	return text
}

// steadily calls do rate times per second, concurrently, and waits until all calls have ended.
func steadily(count, rate int, do func(i int)) {
	var wg sync.WaitGroup
	began := time.Now()
	for i := range count {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}
