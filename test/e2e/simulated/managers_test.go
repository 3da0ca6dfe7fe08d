package simulated

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	url := fmt.Sprintf("https://%v:%d/pin", r.cluster.ControlAddr(), webhookPort)
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	pinned := 0
	steadily(count, rate, func(i int) {
		p := c.pod(5 * i % c.reservations)
		p.Spec.SchedulerName, p.Spec.RestartPolicy = corev1.DefaultSchedulerName, corev1.RestartPolicyAlways
		review, err := inspect.Review(p, true)
		began, answer := time.Now(), ""
		if err == nil {
			answer, err = inspect.Ask(r.ctx, client, url, review)
		}
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
