package pinbench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/fleet"
)

// CostOptions are the numbers of one measurement of Cost.
type CostOptions struct {
	Nodes, PodsPerNode int
	Rate               int           // recreations per second
	Window             time.Duration // of each kind of recreations
	Rounds             int           // each has a phase of each kind
	// Simulated is the directory test/e2e/simulated.
	Simulated string
	// Files is the directory in which the nodes' stores are made, each of which takes 4 MiB.
	Files string
	// Settle is how long the agents run before they are measured. It must be longer than the minute
	// after which they read what they do not watch.
	Settle time.Duration
	// Accidents are the names of those that are measured too.
	Accidents []string
	// Outage is how long the API server is away in one of them.
	Outage time.Duration
}

const (
	replicas      = 2
	admissionRate = 50
	admissionFor  = 20 * time.Second
	// agentsSpread is the time in which a number of agents is started one after the other, for each
	// thousand of them.
	agentsSpread = 45 * time.Second
	// startLimit is the time in which at least one more agent must watch its pods after the start.
	startLimit = 3 * time.Minute
	// afterwards is how long the requests after an accident are counted. After an outage of the API
	// server, the agents spread their watches over up to three minutes.
	afterwards, afterOutage = time.Minute, 200 * time.Second
	// managersRest is how long managers run before their memory is read.
	managersRest = 30 * time.Second
	// upgradeStep is the time from the restart of a tenth of the agents until that of the next.
	upgradeStep = 15 * time.Second
)

// costRun is a measurement of Cost.
type costRun struct {
	*Bench
	options CostOptions
	population
	agents *simulated
	times  *podTimes
	// phases are those that were measured, running and pinned the durations from the deletion of a
	// retained pod in them until its successor runs and is pinned.
	phases          phases
	running, pinned []time.Duration
	// otherWatches is the number of watches of pods before the agents are started.
	otherWatches int

	mu        sync.Mutex
	recreated map[string]bool          // the retained pods that were recreated, by namespace and name
	gone      map[string]chan struct{} // closed when the pod with the UID is deleted
	uids      map[string]types.UID     // of existing pods, by namespace and name
	next      int                      // the next retained pod
}

// Cost measures what leasehold costs the API server with a number of nodes: in rounds of phases in
// which nothing, pods without and pods with leasehold's annotation are recreated at a fixed rate,
// and then through accidents. It prints the figures.
func (b *Bench) Cost(ctx context.Context, o CostOptions) (err error) {
	// These nodes renew no Lease, so the controller manager must not run.
	if err := b.cluster.StopControl(ctx, cluster.ControllerManager); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &costRun{Bench: b, options: o, recreated: map[string]bool{}, gone: map[string]chan struct{}{},
		uids:       map[string]types.UID{},
		population: population{Nodes: o.Nodes, Reservations: o.Nodes * o.PodsPerNode},
		times:      &podTimes{key: byUID, pods: map[string]*podTime{}}}
	program, err := b.buildSimulated(ctx, o.Simulated)
	if err != nil {
		return err
	}
	if err := b.sayCommit(ctx, r.population); err != nil {
		return err
	}
	if _, err := b.buildManager(ctx); err != nil { // not a part of its start
		return err
	}
	stop, err := r.start(ctx, program)
	if stop != nil {
		defer func() { cancel(); err = errors.Join(err, stop()) }()
	}
	if err != nil {
		return err
	}
	return r.measure(ctx)
}

// Managers measures the memory of the managers, and admissions, with a population and without
// agents. If hasPods is false, all pods are away, so that there are reservations only.
func (b *Bench) Managers(ctx context.Context, nodes, reservations int, hasPods bool) (err error) {
	// These nodes renew no Lease, so the controller manager must not run.
	if err := b.cluster.StopControl(ctx, cluster.ControllerManager); err != nil {
		return err
	}
	c := population{Nodes: nodes, Reservations: reservations, Away: !hasPods}
	if err := b.sayCommit(ctx, c); err != nil {
		return err
	}
	if _, err := b.fill(ctx, c); err != nil {
		return err
	}
	if _, err := b.buildManager(ctx); err != nil { // not a part of its start
		return err
	}
	if err := b.startReplicas(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stopManager(ctx)) }()
	if err := pause(ctx, managersRest); err != nil {
		return err
	}
	if err := b.sayMemory(ctx, "resting"); err != nil {
		return err
	}
	if err := b.admissions(ctx, c); err != nil {
		return err
	}
	return b.sayMemory(ctx, "after the load")
}

// startReplicas starts all managers, and says how long that took.
func (b *Bench) startReplicas(ctx context.Context) error {
	began := time.Now()
	if err := b.startManagers(ctx, replicas, nil); err != nil {
		return err
	}
	b.say("%d managers from start to ready: %s", replicas, seconds(time.Since(began)))
	return nil
}

// sayMemory says how much memory the replicas take.
func (b *Bench) sayMemory(ctx context.Context, when string) error {
	for i := range replicas {
		m, err := b.memory(ctx, managerName(i))
		if err != nil {
			return err
		}
		b.say("memory of manager %d %s: %d MiB, at most %d", i, when, m.now, m.peak)
	}
	return nil
}

// sayCommit says what is measured: the commit of the tree, with a plus sign if its programs differ.
func (b *Bench) sayCommit(ctx context.Context, c population) (err error) {
	git := func(args ...string) string {
		out, e := exec.CommandContext(ctx, "git", append([]string{"-C", b.cluster.Repo}, args...)...).Output()
		err = errors.Join(err, e)
		return strings.TrimSpace(string(out))
	}
	commit, subject := git("rev-parse", "--short=7", "HEAD"), git("log", "-1", "--format=%s")
	if git("status", "--porcelain", "--", "cmd", "pkg", "daemonset", "go.mod") != "" {
		commit += "+"
	}
	b.say("%s (%s): %d nodes, %d reservations, %d retained pods", commit, subject, c.Nodes, c.Reservations,
		c.Reservations-len(c.away()))
	return err
}

// start fills the cluster, and starts the managers, the kubelets and the agents.
func (r *costRun) start(ctx context.Context, program string) (stop func() error, err error) {
	f, err := r.fill(ctx, r.population)
	if err != nil {
		return nil, err
	}
	running := map[types.UID]string{}
	for i := range r.Reservations {
		if !r.held(i) {
			running[types.UID(f.pods[i])] = fmt.Sprintf("container-%d", i)
			r.uids[r.key(i)] = types.UID(f.pods[i])
		}
	}
	if err := r.fillPlain(ctx, running); err != nil {
		return nil, err
	}
	err = r.apply(ctx, func(o *unstructured.Unstructured) bool { return o.GetName() == reservationsPolicy })
	if err != nil {
		return nil, err
	}
	if r.agents, err = r.startSimulated(ctx, program, r.options.Files); err != nil {
		return nil, err
	}
	stop = r.agents.close
	pods, err := r.addNodes(ctx, r.agents, r.population, f)
	if err != nil {
		return stop, err
	}
	for _, p := range pods {
		running[p.UID] = ""
	}
	r.managerRestarts = true
	if err := r.startReplicas(ctx); err != nil {
		return stop, err
	}
	stop = func() error { return errors.Join(r.stopManager(ctx), r.agents.close()) }
	kubelets, err := r.kubelets(ctx, running)
	if err != nil {
		return stop, err
	}
	stop = func() error { kubelets.Wait(); return errors.Join(r.stopManager(ctx), r.agents.close()) }
	if r.otherWatches, err = r.watchers(ctx); err != nil {
		return stop, err
	}
	r.say("starting %d agents", r.Nodes)
	return stop, r.agents.agents(ctx, r.nodeNames(0, r.Nodes), false, r.spread(r.Nodes))
}

// spread returns the time in which agents are started.
func (r *costRun) spread(agents int) time.Duration {
	return max(10*time.Second, agentsSpread*time.Duration(agents)/1000)
}

// plainPods is the number of pods without the annotation.
func (r *costRun) plainPods() int { return r.options.Rate * int(r.options.Window.Seconds()) }

func (r *costRun) plainPod(i int) *corev1.Pod {
	p := r.pod(i)
	p.Name, p.Spec.Hostname, p.Annotations = fmt.Sprintf("plain-%d", i), "", nil
	p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
	return p
}

// fillPlain creates the pods without the annotation.
func (r *costRun) fillPlain(ctx context.Context, running map[types.UID]string) error {
	var mu sync.Mutex
	return r.each(ctx, "pods without the annotation", r.plainPods(), func(ctx context.Context, i int) error {
		p := r.plainPod(i)
		p.Spec.NodeName = r.nodeName(i)
		p, err := r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		running[p.UID], r.uids[byName(p)] = fmt.Sprintf("plain-%d", i), p.UID
		return nil
	})
}

func (r *costRun) key(i int) string { return r.namespace(i) + "/" + r.podName(i) }

func (r *costRun) nodeNames(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, r.nodeName(i))
	}
	return names
}

// kubelets starts what runs the pods.
func (r *costRun) kubelets(ctx context.Context, running map[types.UID]string) (*fleet.Fleet, error) {
	log, err := os.Create(r.cluster.Log("host", "fleet"))
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(fleet.Config{API: r.api, Runtime: r.agents, Slow: true,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Seen: func(p *corev1.Pod) {
			if _, is := running[p.UID]; !is {
				r.times.see(p, time.Now())
			}
		},
		Gone: func(p *corev1.Pod) { close(r.goneOf(p.UID)) }})
	if err != nil {
		return nil, err
	}
	return f, f.Run(ctx, r.nodeNames(0, r.Nodes), running)
}

// goneOf returns the channel that is closed when a pod is deleted.
func (r *costRun) goneOf(uid types.UID) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone[string(uid)] == nil {
		r.gone[string(uid)] = make(chan struct{})
	}
	return r.gone[string(uid)]
}

// recreate deletes a pod and creates its successor when it is deleted, as a StatefulSet's
// controller does, and waits until that runs.
func (r *costRun) recreate(ctx context.Context, next *corev1.Pod) (podTime, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stuckAfter)
	defer cancel()
	pods := r.client.CoreV1().Pods(next.Namespace)
	r.mu.Lock()
	old := r.uids[byName(next)]
	r.mu.Unlock()
	deleted := time.Now()
	err := pods.Delete(ctx, next.Name, metav1.DeleteOptions{})
	if ignoreNotFound(err) != nil {
		return podTime{}, deleted, err
	}
	if err == nil { // otherwise an earlier recreation failed
		select {
		case <-r.goneOf(old):
		case <-ctx.Done():
			return podTime{}, deleted, fmt.Errorf("pod %s is not deleted: %w", byName(next), ctx.Err())
		}
	}
	made, err := pods.Create(ctx, next, metav1.CreateOptions{})
	if err != nil {
		return podTime{}, deleted, err
	}
	r.times.created(made, time.Now())
	r.mu.Lock()
	r.uids[byName(next)] = made.UID
	r.mu.Unlock()
	for {
		if t := r.times.get(byUID(made)); !t.running.IsZero() {
			return t, deleted, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return r.times.get(byUID(made)), deleted, fmt.Errorf("pod %s does not run: %w", byName(next), err)
		}
	}
}

// recreations recreates count pods of a kind at the rate, and waits until all run. It begins with
// no other after starting is done.
func (r *costRun) recreations(ctx, starting context.Context, kind string, count int) (n numbers, err error) {
	var mu sync.Mutex
	steadily(starting, count, r.options.Rate, func(i int) {
		pod := r.plainPod(i % r.plainPods())
		if kind == retained {
			pod = r.nextRetained()
		}
		t, deleted, e := r.recreate(ctx, pod)
		mu.Lock()
		defer mu.Unlock()
		if e != nil {
			n.failed, err = n.failed+1, e
			return
		}
		n.running = append(n.running, t.running.Sub(deleted))
		if !t.pinned.IsZero() {
			n.pinned = append(n.pinned, t.pinned.Sub(deleted))
		}
	})
	return n, err
}

// numbers are the durations from the deletions of pods until their successors ran and were
// pinned, and how many failed.
type numbers struct {
	running, pinned []time.Duration
	failed          int
}

// nextRetained returns the pod that is recreated next.
func (r *costRun) nextRetained() *corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		i := r.next % r.Reservations
		r.next++
		if !r.held(i) && r.node(i) < r.Nodes-r.zone() { // the others may be away
			r.recreated[r.key(i)] = true
			return r.pod(i)
		}
	}
}

// zone is the number of nodes that are away at an outage of a zone.
func (r *costRun) zone() int { return min(1000, r.Nodes/5) }

// measure measures the phases, admissions and accidents.
func (r *costRun) measure(ctx context.Context) error {
	if err := r.started(ctx); err != nil {
		return err
	}
	r.say("the agents settle for %v", r.options.Settle)
	if err := pause(ctx, r.options.Settle); err != nil {
		return err
	}
	if err := r.admissions(ctx, r.population); err != nil {
		return err
	}
	if err := r.sayMemory(ctx, "resting"); err != nil {
		return err
	}
	before, err := r.histogram(ctx)
	if err != nil {
		return err
	}
	for range r.options.Rounds {
		for _, kind := range []string{idle, plain, retained} {
			if err := r.phase(ctx, kind); err != nil {
				return err
			}
		}
	}
	after, err := r.histogram(ctx)
	if err != nil {
		return err
	}
	if err := r.sayMemory(ctx, "after the load"); err != nil {
		return err
	}
	agents, err := residentOf(fmt.Sprintf("/proc/%d/status", r.agents.process.Process.Pid))
	if err != nil {
		return err
	}
	api, err := r.memory(ctx, cluster.APIServer)
	if err != nil {
		return err
	}
	r.say("memory of all agents: %d MiB, of the API server: %d MiB", agents.now, api.now)
	slices.Sort(r.running)
	slices.Sort(r.pinned)
	within, admitted := after.since(before, latencyGoal)
	r.say("admission of recreated pods, by the API server's histogram: %.1f %% of %d within %v", 100*within, admitted,
		latencyGoal)
	r.say("%d of %d recreated pods were pinned; p50, p99, max from delete to pinned: %s, to running: %s",
		len(r.pinned), len(r.running), spread(r.pinned), spread(r.running))
	if err := r.phases.print(r.out); err != nil {
		return err
	}
	return r.accidents(ctx)
}

// started waits until almost all agents watch their pods and the API server rejects at most one
// percent of leasehold's requests. A measurement before that would be one of the start of the
// agents. It gives up if no further agent watches its pods in the time of startLimit.
func (r *costRun) started(ctx context.Context) error {
	last, most := time.Now(), 0
	for {
		offset, err := r.auditSize()
		if err != nil {
			return err
		}
		if err := pause(ctx, r.options.Window); err != nil {
			return err
		}
		requests, err := r.auditFrom(offset)
		if err != nil {
			return err
		}
		watching, err := r.watchers(ctx)
		if err != nil {
			return err
		}
		rejected := rejections(requests)
		if watching*100 >= r.Nodes*98 && rejected*100 <= len(requests) {
			return nil
		}
		r.say("    %d of %d agents watch their pods; the API server rejected %d of %d requests of leasehold in %v",
			watching, r.Nodes, rejected, len(requests), r.options.Window)
		if watching > most {
			last, most = time.Now(), watching
		}
		if time.Since(last) > startLimit {
			return fmt.Errorf("the API server is too slow for %d nodes: %d agents watch their pods", r.Nodes, watching)
		}
	}
}

// watchers returns how many watches of pods the API server serves, apart from those of the other
// programs of the cluster. These may have been more or fewer before the agents started.
func (r *costRun) watchers(ctx context.Context) (int, error) {
	text, err := r.client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	all := sumBy(string(text), "apiserver_longrunning_requests{", "resource", "subresource", "verb")["pods WATCH"]
	return all - r.otherWatches, err
}

// admissions measures the webhook with dry runs: if the pods were created later or never, the
// manager would make other admissions wait for them.
func (b *Bench) admissions(ctx context.Context, c population) error {
	before, began, err := machineTime()
	if err != nil {
		return err
	}
	asked, pinged, err := b.ask(ctx, c, c.away(), admissionRate, admissionFor, true)
	if err != nil {
		return err
	}
	busy, now, err := machineTime()
	if err != nil {
		return err
	}
	b.say("admission, p50, p99, max: %s; /healthz: %s; the processors are busy for %.0f %%", spread(asked.took),
		spread(pinged.took), 100*float64(busy-before)/float64(now.Sub(began))/float64(runtime.NumCPU()))
	return nil
}

// machineTime returns for how long the machine's processors were busy, added up, and the time.
func machineTime() (busy time.Duration, now time.Time, err error) {
	text, err := os.ReadFile("/proc/stat")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 9 {
		return 0, now, fmt.Errorf("/proc/stat cannot be read: %w", err)
	}
	for i, field := range fields[1:9] { // the first line, in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, now, err
		}
		if i != 3 && i != 4 { // idle, and idle while waiting for a disk
			busy += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return busy, time.Now(), nil
}

// A state has the counters of the cluster at one time.
type state struct {
	at        time.Time
	processor time.Duration // of the API server
	audit     int64
	stalled   time.Duration // of the machine's processors
}

func (r *costRun) state(ctx context.Context) (s state, err error) {
	used, err := r.processorTime(ctx)
	if err != nil {
		return s, err
	}
	s.processor = used[cluster.APIServer]
	if s.stalled, err = stalled(); err != nil {
		return s, err
	}
	s.at = time.Now()
	s.audit, err = r.auditSize()
	return s, err
}

// stalled returns for how long something that could run had to wait for a CPU of this machine.
func stalled() (time.Duration, error) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	_, rest, ok := strings.Cut(string(text), "total=")
	if err != nil || !ok {
		return 0, fmt.Errorf("/proc/pressure/cpu cannot be read: %q: %w", text, err)
	}
	total, _, _ := strings.Cut(rest, "\n")
	us, err := strconv.Atoi(total)
	return time.Duration(us) * time.Microsecond, err
}

// sumBy adds up the values of a metric by some of its labels, whose values are joined.
func sumBy(text, metric string, labels ...string) map[string]int {
	sums := map[string]int{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, metric)
		all, value, ok2 := strings.Cut(rest, "} ")
		number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !ok || !ok2 || err != nil {
			continue
		}
		var names []string
		for _, label := range labels {
			_, v, _ := strings.Cut(","+all, ","+label+`="`)
			if v, _, _ = strings.Cut(v, `"`); v != "" {
				names = append(names, v)
			}
		}
		sums[strings.Join(names, " ")] += int(number)
	}
	return sums
}

// phase measures one phase.
func (r *costRun) phase(ctx context.Context, kind string) error {
	before, err := r.state(ctx)
	if err != nil {
		return err
	}
	var n numbers
	if kind == idle {
		err = pause(ctx, r.options.Window)
	} else {
		n, err = r.recreations(ctx, ctx, kind, r.options.Rate*int(r.options.Window.Seconds()))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	done := len(n.running)
	if kind == retained {
		r.running, r.pinned = append(r.running, n.running...), append(r.pinned, n.pinned...)
	}
	if err := pause(ctx, 3*time.Second); err != nil { // for the agents' last writes
		return err
	}
	after, err := r.state(ctx)
	if err != nil {
		return err
	}
	requests, err := r.auditFrom(before.audit)
	if err != nil {
		return err
	}
	w := phase{kind: kind, took: after.at.Sub(before.at), recreations: done, requests: map[string]int{},
		named: map[string]int{}, processor: after.processor - before.processor}
	for _, l := range requests {
		if l.at.After(after.at) {
			continue
		}
		w.requests[l.String()]++
		if l.isOf(r.recreated) {
			w.named[l.String()]++
		}
	}
	r.phases = append(r.phases, w)
	r.say("%-8s %4d recreated in %.0f s; API server %.0f %% of the processors; load average %s, %.0f %% waited for a "+
		"processor", kind, done, w.took.Seconds(),
		100*float64(w.processor)/float64(w.took)/float64(runtime.NumCPU()), loadAverage(),
		100*float64(after.stalled-before.stalled)/float64(w.took))
	return nil
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
