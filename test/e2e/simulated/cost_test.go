package simulated

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

const (
	memoryGoal = 300 // MiB of a manager

	recreationRate = 5                // recreations per second
	phaseLength    = 15 * time.Second // of each kind of recreations
	rounds         = 3
	// settle is longer than the minute after which agents read what they do not watch.
	settle = 75 * time.Second
	// outage is how long the API server is away. Agents spread their watches over up to three
	// minutes after it.
	outage, afterOutage = time.Minute, 200 * time.Second
)

// cost measures what leasehold costs the API server: for the recreation of a pod with and without
// its annotation, while nothing happens, when all agents start at the same moment, and when the API
// server was away. It logs the figures.
func (r *rig) cost() {
	c := population{nodes: r.number("NODES", 50)}
	c.reservations = 10 * c.nodes
	f := r.fill(c)
	containers := map[types.UID]string{}
	for i, uid := range f.pods {
		containers[types.UID(uid)] = fmt.Sprintf("container-%d", i)
	}
	m := &meter{rig: r, population: c}
	plain := recreationRate * int(phaseLength.Seconds())
	var mu sync.Mutex
	r.each("pods without the annotation", plain, func(ctx context.Context, i int) error {
		p := m.plainPod(i)
		p.Spec.NodeName = nodeName(i % c.nodes)
		p, err := r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			containers[p.UID] = fmt.Sprintf("plain-%d", i)
		}
		return err
	})
	r.startManagers()
	began := m.audit(0).size
	a := r.startAgents(c, f, max(10*time.Second, 45*time.Second*time.Duration(c.nodes)/1000))
	m.kubelets = r.startKubelets(a, containers)
	r.until("almost all agents watch their pods", func() error {
		if n := len(m.audit(began).watchedAt); n*100 < c.nodes*98 {
			return fmt.Errorf("%d of %d agents watch their pods", n, c.nodes)
		}
		return nil
	})
	r.must(pause(r.ctx, settle))
	r.admissions(c)
	r.sayMemory("resting")
	for range rounds {
		m.phase("idle", nil)
		m.phase("plain", func(i int) *corev1.Pod { return m.plainPod(i % plain) })
		m.phase("retained", func(int) *corev1.Pod { return m.nextRetained() })
	}
	m.report()
	r.sayMemory("after the load")
	m.accident(fmt.Sprintf("%d agents started at the same moment", c.nodes), time.Minute, func() {
		r.must(a.run(r.ctx, nodeNames(0, c.nodes), true, 0))
		r.must(a.run(r.ctx, nodeNames(0, c.nodes), false, 0))
	})
	m.accident(fmt.Sprintf("the API server killed and away for %v", outage), afterOutage, func() {
		r.must(r.control().Kill(r.ctx, cluster.APIServer))
		r.must(pause(r.ctx, outage))
		r.must(r.cluster.RunControl(r.ctx))
	})
}

// managers measures the memory of the managers, and admissions, with many reservations and without
// agents.
func (r *rig) managers() {
	c := population{nodes: r.number("NODES", 5000), reservations: r.number("RESERVATIONS", 5000)}
	r.fill(c)
	r.startManagers()
	r.sayMemory("after the start")
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

// admissions asks the webhook about pods that are away, as the API server does, 50 times a second.
// They are dry runs: the manager remembers nothing of them.
func (r *rig) admissions(c population) {
	const rate, count = 50, 1000
	config, err := clientcmd.LoadFromFile(r.cluster.Scratch("webhooks.kubeconfig"))
	r.must(err)
	user := config.AuthInfos["*"]
	certificate, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	r.must(err)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}}}
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	pinned := 0
	steadily(r.ctx, count, rate, func(i int) {
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

// A meter recreates pods and measures the API server meanwhile.
type meter struct {
	*rig
	population
	kubelets *kubelets
	phases   []phase

	mu   sync.Mutex
	next int // the next retained pod
}

// A phase is a time in which one kind of pods is recreated.
type phase struct {
	kind      string
	took      time.Duration
	recreated int
	processor time.Duration  // of the API server
	requests  map[string]int // of leasehold's accounts, such as "agent patch ipreservations/status"
}

// plainPod returns a pod without the annotation.
func (m *meter) plainPod(i int) *corev1.Pod {
	p := m.pod(i)
	p.Name, p.Spec.Hostname, p.Annotations = fmt.Sprintf("plain-%d", i), "", nil
	p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
	return p
}

func (m *meter) nextRetained() *corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.next++; m.isAway(m.next % m.reservations); m.next++ {
	}
	return m.pod(m.next % m.reservations)
}

// phase measures a phase in which the pods that pod returns are recreated.
func (m *meter) phase(kind string, pod func(i int) *corev1.Pod) {
	p := phase{kind: kind}
	offset, processor, began := m.audit(0).size, m.processorTime(), time.Now()
	if pod == nil {
		m.must(pause(m.ctx, phaseLength))
	} else {
		var mu sync.Mutex
		var failed error
		steadily(m.ctx, recreationRate*int(phaseLength.Seconds()), recreationRate, func(i int) {
			err := m.recreate(pod(i))
			mu.Lock()
			defer mu.Unlock()
			p.recreated, failed = p.recreated+1, errors.Join(failed, err)
		})
		m.must(failed)
		m.must(pause(m.ctx, 3*time.Second)) // for the agents' last writes
	}
	p.took, p.processor, p.requests = time.Since(began), m.processorTime()-processor, m.audit(offset).requests
	m.phases = append(m.phases, p)
	m.Logf("%-8s %4d recreated in %.0f s", kind, p.recreated, p.took.Seconds())
}

// recreate deletes a pod and creates its successor when it is gone, as a StatefulSet's controller
// does, and waits until that runs.
func (m *meter) recreate(next *corev1.Pod) error {
	pods, old := m.client.CoreV1().Pods(next.Namespace), m.kubelets.get(nameOf(next))
	if old == nil {
		return fmt.Errorf("there is no pod %s", nameOf(next))
	}
	if err := pods.Delete(m.ctx, next.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := m.kubelets.gone(m.ctx, nameOf(next), old.UID); err != nil {
		return err
	}
	if _, err := pods.Create(m.ctx, next, metav1.CreateOptions{}); err != nil {
		return err
	}
	return m.kubelets.running(m.ctx, nameOf(next), old.UID)
}

// report logs the figures of the phases. Those of a recreation are without what happens in the idle
// phase of the same round.
func (m *meter) report() {
	each := map[string][]float64{}   // the API server's milliseconds for a recreation, by kind
	requests := map[string]float64{} // for the recreation of a retained pod
	var idle phase
	for _, p := range m.phases {
		share := p.took.Seconds() / max(idle.took.Seconds(), 1e-9)
		switch p.kind {
		case "idle":
			idle = p
			for name, n := range p.requests {
				m.Logf("idle: %s %.2f a second", name, float64(n)/p.took.Seconds())
			}
			continue
		case "retained":
			for name, n := range p.requests {
				requests[name] += (float64(n) - share*float64(idle.requests[name])) / float64(rounds*p.recreated)
			}
		}
		net := p.processor - time.Duration(share*float64(idle.processor))
		each[p.kind] = append(each[p.kind], net.Seconds()*1000/float64(p.recreated))
	}
	for kind, ms := range each {
		slices.Sort(ms)
		m.Logf("API server's processor time for a %s pod: %.1f ms (%.1f to %.1f)", kind, ms[len(ms)/2], ms[0],
			ms[len(ms)-1])
	}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		m.Logf("requests for a retained pod: %s %.2f", name, requests[name])
	}
}

// accident logs leasehold's requests while and after something happens.
func (m *meter) accident(about string, afterwards time.Duration, happen func()) {
	offset, before := m.audit(0).size, time.Now()
	m.must(pause(m.ctx, phaseLength))
	quiet, took, began := m.audit(offset), time.Since(before), m.audit(0).size
	happen()
	ended := time.Now()
	m.must(pause(m.ctx, afterwards))
	a := m.audit(began)
	again := "not all agents watch again"
	if len(a.watchedAt) >= m.nodes {
		again = fmt.Sprintf("all agents watch again after %.0f s", max(0, a.watchedAt[m.nodes-1].Sub(ended).Seconds()))
	}
	m.Logf("%s: %.1f requests a second before, at most %d afterwards, %d rejected; %s", about,
		float64(quiet.total)/took.Seconds(), a.busiest, a.rejected, again)
}

// audited is what the audit log has about leasehold's requests.
type audited struct {
	size                     int64 // its end
	requests                 map[string]int
	total, rejected, busiest int
	watchedAt                []time.Time // begins of watches of pods by agents
}

// audit reads the audit log from an offset on. Its last line may be incomplete.
func (m *meter) audit(offset int64) (a audited) {
	text, err := os.ReadFile(m.cluster.AuditLog())
	m.must(err)
	a.size, a.requests = int64(bytes.LastIndexByte(text, '\n')+1), map[string]int{}
	seconds := map[int64]int{}
	for line := range bytes.Lines(text[offset:a.size]) {
		var e struct {
			Stage, Verb, RequestURI  string
			RequestReceivedTimestamp time.Time
			User                     struct{ Username string }
			ObjectRef                struct{ Resource, Subresource string }
			ResponseStatus           struct{ Code int }
		}
		m.must(json.Unmarshal(line, &e))
		rejected := e.ResponseStatus.Code == http.StatusTooManyRequests || e.ResponseStatus.Code >= 500
		// A watch has one event when it begins, and one when it has ended.
		if watched := e.Verb == "watch" && e.ResponseStatus.Code < 400; watched != (e.Stage == "ResponseStarted") {
			continue
		}
		name := strings.TrimPrefix(e.User.Username[strings.LastIndex(e.User.Username, ":")+1:], "leasehold-")
		name += " " + e.Verb + " " + strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		a.requests[name]++
		a.total++
		at := e.RequestReceivedTimestamp
		seconds[at.Unix()]++
		a.busiest = max(a.busiest, seconds[at.Unix()])
		if rejected {
			a.rejected++
		} else if name == "agent watch pods" {
			a.watchedAt = append(a.watchedAt, at)
		}
	}
	slices.SortFunc(a.watchedAt, time.Time.Compare)
	return a
}

// processorTime returns the processor time of the API server.
func (m *meter) processorTime() (used time.Duration) {
	stat, err := os.ReadFile(fmt.Sprintf("%s/proc/%d/stat", m.cluster.Root(cluster.Control),
		m.control().Services()[cluster.APIServer]))
	m.must(err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	for _, ticks := range strings.Fields(rest)[11:13] { // in user and system mode, in hundredths of a second
		n, err := strconv.Atoi(ticks)
		m.must(err)
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return used
}

// steadily calls do rate times per second, concurrently, and waits until all calls have ended.
func steadily(ctx context.Context, count, rate int, do func(i int)) {
	var wg sync.WaitGroup
	began := time.Now()
	for i := range count {
		if pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/time.Duration(rate)))) != nil {
			break
		}
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}
