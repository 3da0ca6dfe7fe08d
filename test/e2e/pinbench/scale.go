package pinbench

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The goals (docs/performance.md, "Goals").
const (
	latencyGoal = 5 * time.Millisecond // p99
	memoryGoal  = 300                  // MiB
)

// creations is the rate of created pods in proportion to that of admissions: each pod causes about
// six writes of the API server, the scheduler and the manager, all on one small machine.
const creations = 5

// Scale measures the manager with a population: its memory, and the duration of an admission at a
// rate per second, for a duration. It reports whether the goals were met. It is one sequence of
// steps.
func (b *Bench) Scale(ctx context.Context, nodes, reservations, rate int,
	lasting time.Duration) (fine bool, err error) {
	// These nodes renew no Lease, so the controller manager must not run.
	if err := b.cluster.StopControl(ctx, cluster.ControllerManager); err != nil {
		return false, err
	}
	c := population{Nodes: nodes, Reservations: reservations}
	if _, err := b.fill(ctx, c); err != nil {
		return false, err
	}
	if _, err := b.buildManager(ctx); err != nil { // not a part of its start
		return false, err
	}
	began := time.Now()
	if err := b.startManager(ctx); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.stopManager(ctx)) }()
	ready := time.Since(began)
	if err := pause(ctx, 10*time.Second); err != nil { // for the heap of the first lists to be collected
		return false, err
	}
	resting, err := b.memory(ctx, wellknown.ManagerName)
	if err != nil {
		return false, err
	}
	away := c.away()
	if want := rate * int(lasting.Seconds()); len(away) < want {
		return false, fmt.Errorf("%d pods are away: too few for %d admissions", len(away), want)
	}
	b.say("%d admissions per second, sent to the webhook directly", rate)
	asked, pinged, err := b.ask(ctx, c, away, rate, lasting, false)
	if err != nil {
		return false, err
	}
	b.say("    took %s (p50, p99, max), /healthz %s; the manager has %d MiB",
		spread(asked.took), spread(pinged.took), resting.now)
	slowly := max(1, rate/creations)
	b.say("%d pods per second, created through the API server", slowly)
	before, err := b.histogram(ctx)
	if err != nil {
		return false, err
	}
	idle, err := b.processorTime(ctx)
	if err != nil {
		return false, err
	}
	created, err := b.create(ctx, c, away, slowly, lasting)
	if err != nil {
		return false, err
	}
	after, err := b.histogram(ctx)
	if err != nil {
		return false, err
	}
	busy, err := b.processorTime(ctx)
	if err != nil {
		return false, err
	}
	loaded, err := b.memory(ctx, wellknown.ManagerName)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(b.out,
		"\n%d reservations, %d nodes, %d retained pods; %d admissions a second, then %d creations a second, for %v "+
			"each\n"+
			"pressure on this machine's processors: %s\n\n",
		reservations, nodes, reservations-len(away), rate, slowly, lasting, pressure())
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fine = true
	mark := func(met bool, goal string) string {
		fine = fine && met
		return goal + map[bool]string{true: ", met", false: ", MISSED"}[met]
	}
	fmt.Fprintf(w, "\t\tGOAL\n")
	fmt.Fprintf(w, "admission, at the webhook's client: p50, p99, max\t%s\t%s\n",
		spread(asked.took), mark(percentile(asked.took, 99) <= latencyGoal, "p99 <= 5 ms"))
	fmt.Fprintf(w, "    of %d, pinned\t%d\t\n", len(asked.took), asked.pinned)
	fmt.Fprintf(w, "    its /healthz, in turn with that\t%s\t\n", spread(pinged.took))
	within, total := after.since(before, latencyGoal)
	fmt.Fprintf(w, "admission, by the API server's histogram: within 5 ms\t%.2f %% of %d\t%s\n",
		100*within, total, mark(within >= 0.99, ">= 99 %"))
	fmt.Fprintf(w, "create of a pod, at its client: p50, p99, max\t%s\t\n", spread(created))
	fmt.Fprintf(w, "processor time of that, per pod: manager, API server, scheduler\t%s\t\n",
		perPod(idle, busy, len(created), wellknown.ManagerName, cluster.APIServer, cluster.Scheduler))
	fmt.Fprintf(w, "manager, start to ready\t%s\t\n", seconds(ready))
	fmt.Fprintf(w, "manager's memory, MiB: resting, after the load, peak\t%d, %d, %d\t%s\n",
		resting.now, loaded.now, loaded.peak, mark(loaded.peak <= memoryGoal, fmt.Sprintf("peak <= %d", memoryGoal)))
	return fine, w.Flush()
}

// pressure returns for which part of the last minute a runnable process had to wait for a CPU.
// Above a few percent the measured times are not reliable.
func pressure() string {
	text, err := os.ReadFile("/proc/pressure/cpu")
	_, rest, ok := strings.Cut(string(text), "avg60=")
	if err != nil || !ok {
		return "unknown"
	}
	value, _, _ := strings.Cut(rest, " ")
	return value + " % of the last minute"
}

func spread(sorted []time.Duration) string {
	ms := func(p int) string { return fmt.Sprintf("%.1f", float64(percentile(sorted, p).Microseconds())/1000) }
	return ms(50) + ", " + ms(99) + ", " + ms(100) + " ms"
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// resident memory in MiB.
type resident struct{ now, peak int }

func (b *Bench) memory(ctx context.Context, service string) (resident, error) {
	reply, err := b.control().Call(ctx, machine.Request{List: true})
	if err != nil {
		return resident{}, err
	}
	pid := reply.Services[service]
	if pid == 0 {
		return resident{}, fmt.Errorf("%s has ended; see %s", service, b.cluster.Log(cluster.Control, service))
	}
	return residentOf(fmt.Sprintf("%s/proc/%d/status", b.cluster.Root(cluster.Control), pid))
}

// residentOf returns the memory of the process with the given status file in /proc.
func residentOf(path string) (r resident, err error) {
	status, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		for name, to := range map[string]*int{"VmRSS:": &r.now, "VmHWM:": &r.peak} {
			if len(f) > 1 && f[0] == name {
				kib, err := strconv.Atoi(f[1])
				if err != nil {
					return r, err
				}
				*to = kib >> 10
			}
		}
	}
	return r, nil
}

// processorTime returns the CPU time of each service of the control plane's machine.
func (b *Bench) processorTime(ctx context.Context) (map[string]time.Duration, error) {
	reply, err := b.control().Call(ctx, machine.Request{List: true})
	if err != nil {
		return nil, err
	}
	used := map[string]time.Duration{}
	for name, pid := range reply.Services {
		used[name], err = timeOf(fmt.Sprintf("%s/proc/%d/stat", b.cluster.Root(cluster.Control), pid))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return used, nil
}

// timeOf returns the CPU time of the process with the given stat file in /proc.
func timeOf(path string) (used time.Duration, err error) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("%s cannot be parsed: %s", path, stat)
	}
	for _, ticks := range f[11:13] { // in user and system mode, in hundredths of a second
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return 0, err
		}
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return used, nil
}

func perPod(before, after map[string]time.Duration, pods int, services ...string) string {
	var list []string
	for _, name := range services {
		ms := float64((after[name] - before[name]).Microseconds()) / 1000 / float64(max(pods, 1))
		list = append(list, fmt.Sprintf("%.1f", ms))
	}
	return strings.Join(list, ", ") + " ms"
}

// steadily calls do rate times per second, concurrently, and waits until all calls have ended.
func steadily(ctx context.Context, count, rate int, do func(i int)) {
	var wg sync.WaitGroup
	began := time.Now()
	for i := range count {
		at := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if pause(ctx, time.Until(at)) != nil {
			break
		}
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// durations collects durations of concurrent goroutines.
type durations struct {
	mu     sync.Mutex
	took   []time.Duration
	pinned int
	err    error
}

func (d *durations) add(t time.Duration, pinned bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.err = errors.Join(d.err, err)
		return
	}
	d.took = append(d.took, t)
	if pinned {
		d.pinned++
	}
}

func (d *durations) sorted() ([]time.Duration, error) {
	slices.Sort(d.took)
	return d.took, d.err
}

// ask sends the webhook the requests of an API server, and alternately requests the manager's
// health, whose duration shows the load of the machine.
func (b *Bench) ask(ctx context.Context, c population, away []int, rate int, lasting time.Duration,
	dryRun bool) (asked, pinged *durations, err error) {
	hook, err := b.webhook(ctx)
	if err != nil {
		return nil, nil, err
	}
	asked, pinged = &durations{}, &durations{}
	steadily(ctx, rate*int(lasting.Seconds()), rate, func(i int) {
		began := time.Now()
		err := hook.ping(ctx, fmt.Sprintf("http://%v:%d/healthz", b.cluster.ControlAddr(), healthPort))
		pinged.add(time.Since(began), false, err)
		object := reviewOf(c.pod(away[i%len(away)]))
		object.Request.DryRun = &dryRun
		review, err := json.Marshal(object)
		if err != nil {
			asked.add(0, false, err)
			return
		}
		began = time.Now()
		pinned, err := hook.ask(ctx, review)
		asked.add(time.Since(began), pinned, err)
	})
	_, err = asked.sorted()
	_, err2 := pinged.sorted()
	return asked, pinged, errors.Join(err, err2, ctx.Err())
}

func reviewOf(p *corev1.Pod) *admissionv1.AdmissionReview {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.Spec.SchedulerName, p.Spec.RestartPolicy = "default-scheduler", corev1.RestartPolicyAlways
	p.Spec.DNSPolicy = corev1.DNSClusterFirst
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // a pod can be written
	}
	kind := metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	resource := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	return &admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1",
		Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: types.UID(uuid.NewUUID()), Kind: kind, RequestKind: &kind,
			Resource:        resource,
			RequestResource: &resource, Name: p.Name, Namespace: p.Namespace, Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: raw}}}
}

// A hook is a client of the webhook of pods.
type hook struct {
	client *http.Client
	url    string
}

func (b *Bench) webhook(ctx context.Context) (hook, error) {
	config, err := b.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx,
		wellknown.ManagerName, metav1.GetOptions{})
	if err != nil {
		return hook{}, err
	}
	i := slices.IndexFunc(config.Webhooks,
		func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == "pin.leasehold.dev" })
	if i < 0 {
		return hook{}, fmt.Errorf("the configuration %s has no webhook of the pin", config.Name)
	}
	to := config.Webhooks[i].ClientConfig
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(to.CABundle)
	transport := &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8,
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: to.Service.Name + "." + to.Service.Namespace + ".svc"}}
	path := ""
	if to.Service.Path != nil {
		path = *to.Service.Path
	}
	return hook{&http.Client{Transport: transport, Timeout: 10 * time.Second},
		"https://" + net.JoinHostPort(b.cluster.ControlAddr().String(), fmt.Sprint(webhookPort)) + path}, nil
}

func (h hook) ping(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// ask reports whether the response pins the pod to a node.
func (h hook) ask(ctx context.Context, review []byte) (pinned bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(review))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return false, err
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &answer); err != nil || answer.Response == nil || !answer.Response.Allowed {
		return false, fmt.Errorf("the webhook responds %s (%v): %.300s", resp.Status, err, body)
	}
	return bytes.Contains(answer.Response.Patch, []byte(wellknown.AnnotationPinnedNode)), nil
}

// create creates pods that were away, and returns how long each creation took.
func (b *Bench) create(ctx context.Context, c population, away []int, rate int,
	lasting time.Duration) ([]time.Duration, error) {
	var creates durations
	steadily(ctx, rate*int(lasting.Seconds()), rate, func(i int) {
		p := c.pod(away[i])
		began := time.Now()
		_, err := b.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		creates.add(time.Since(began), false, err)
	})
	created, err := creates.sorted()
	return created, errors.Join(err, ctx.Err())
}

// A histogram has the cumulative numbers of the API server's calls of the webhook, by upper bound
// in seconds.
type histogram map[float64]float64

const admissionHistogram = "apiserver_admission_webhook_admission_duration_seconds_bucket{"

func (b *Bench) histogram(ctx context.Context) (histogram, error) {
	text, err := b.client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return parseHistogram(string(text), admissionHistogram, isOurs)
}

// isOurs reports whether a line's labels are those of CREATE requests to the manager's webhooks.
func isOurs(labels string) bool {
	return strings.Contains(labels, "leasehold") && strings.Contains(labels, `operation="CREATE"`)
}

// parseHistogram adds up the buckets of a metric.
func parseHistogram(text, metric string, want func(labels string) bool) (histogram, error) {
	h := histogram{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, metric)
		labels, value, ok2 := strings.Cut(rest, "} ")
		if !ok || !want(labels) {
			continue
		}
		_, le, found := strings.Cut(labels, `le="`)
		le, _, _ = strings.Cut(le, `"`)
		bound, err := strconv.ParseFloat(le, 64)
		count, err2 := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !ok2 || !found || err != nil || err2 != nil {
			return nil, fmt.Errorf("a line of a histogram cannot be parsed: %s", line)
		}
		h[bound] += count
	}
	return h, nil
}

// since returns the share of the calls after then that took at most limit, which is one of the
// bounds, and their number.
func (h histogram) since(then histogram, limit time.Duration) (within float64, total int) {
	var all, fast float64
	for bound, count := range h {
		all = max(all, count-then[bound])
		if bound == limit.Seconds() {
			fast = count - then[bound]
		}
	}
	if all == 0 {
		return 0, 0
	}
	return fast / all, int(all)
}
