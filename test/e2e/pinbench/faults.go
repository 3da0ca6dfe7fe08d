package pinbench

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// A fault is a failure while pods are created.
type fault struct {
	name, about string
	run         func(*faultRun, context.Context) error
}

// Faults has all faults.
var faultList = []fault{
	{"rbac", "the managers have no permissions", (*faultRun).rbac},
	{"stalled", "watches deliver no events, their connections stay open", (*faultRun).stalledWatch},
	{"dead", "the managers' connections break without an error", (*faultRun).deadConnections},
	{"slow", "the API server takes 5 s for each call of the managers", (*faultRun).slowCalls},
	{"killed", "both managers are killed", (*faultRun).killed},
}

const (
	startsSoon = 5 * time.Second // the machine is small
	tenants    = 10              // namespaces of one fault
)

// Faults injects each fault whose name matches while pods are created, with two replicas of the
// manager. It reports whether each pod has started soon and was deleted by nobody, and pods were
// pinned again after the fault.
func (b *Bench) Faults(ctx context.Context, match *regexp.Regexp, rate int, lasting time.Duration) (fine bool,
	err error) {
	// These nodes renew no Lease, so the controller manager must not run.
	if err := b.cluster.StopControl(ctx, cluster.ControllerManager); err != nil {
		return false, err
	}
	c := population{Nodes: 20, Reservations: namespaces * max(30, 2*rate*int(lasting.Seconds())/tenants), Away: true}
	if _, err := b.fill(ctx, c); err != nil {
		return false, err
	}
	config, err := clientcmd.LoadFromFile(b.cluster.Kubeconfig())
	if err != nil {
		return false, err
	}
	pool := x509.NewCertPool()
	for _, cluster := range config.Clusters {
		if !pool.AppendCertsFromPEM(cluster.CertificateAuthorityData) {
			return false, errNoCA
		}
	}
	through, err := newProxy(b.cluster.HostAddr(), b.api.Host, pool)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, through.close()) }()
	watch, err := watchPodTimes(ctx, b.client)
	if err != nil {
		return false, err
	}
	if err := b.startManagers(ctx, 2, through); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.stopManager(ctx)) }()
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "FAULT\tPODS\tPINNED\tSLOWEST START\tPINNED AGAIN AFTER\t\n")
	fine = true
	for i, f := range faultList {
		if !match.MatchString(f.name) {
			continue
		}
		b.say("%s: %s", f.name, f.about)
		r := &faultRun{Bench: b, population: c, proxy: through, podTimes: watch, first: i * tenants, rate: rate,
			lasting: lasting, next: map[int]int{}}
		if err := r.all(ctx, f); err != nil {
			return false, err
		}
		for _, err := range r.fail {
			b.say("    %v", err)
		}
		fine = fine && len(r.fail) == 0
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\n", f.name, len(r.made), r.pinned, seconds(r.slowest),
			seconds(r.again), map[bool]string{true: "", false: "FAILED"}[len(r.fail) == 0])
	}
	fmt.Fprintf(b.out, "\ntwo replicas; %d pods each second for %v in %d namespaces\n"+
		"pressure on this machine's processors: %s\n\n", rate, lasting, tenants, pressure())
	return fine, table.Flush()
}

// A faultRun is one fault and what happened to the pods meanwhile.
type faultRun struct {
	*Bench
	population population
	proxy      *proxy
	podTimes   *podTimes
	first      int // namespace
	rate       int
	lasting    time.Duration

	mu   sync.Mutex
	next map[int]int // the next pod of a namespace
	made []*corev1.Pod
	fail []error

	endedAt        time.Time // when the managers could work again
	pinned         int
	slowest, again time.Duration
}

// all runs a fault, waits for its pods, and measures when pods are pinned again.
func (r *faultRun) all(ctx context.Context, f fault) error {
	if err := f.run(r, ctx); err != nil {
		return err
	}
	if r.endedAt.IsZero() {
		r.endedAt = time.Now()
	}
	_ = within(ctx, time.Minute, func() (bool, error) { return r.podTimes.settled(r.made), nil })
	for _, p := range r.made {
		t := r.podTimes.get(byName(p))
		switch {
		case t.bound.IsZero():
			r.problem(fmt.Errorf("%s has not started: %s", byName(p), t.reason))
		case t.bound.Sub(t.created) > startsSoon:
			r.problem(fmt.Errorf("%s starts after %s: %s", byName(p), t.bound.Sub(t.created), t.reason))
		}
		r.slowest = max(r.slowest, t.bound.Sub(t.created))
		if !t.pinned.IsZero() {
			r.pinned++
		}
		if now, err := r.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{}); err != nil ||
			now.UID != p.UID {
			r.problem(fmt.Errorf("%s was replaced: %w", byName(p), err))
		}
	}
	reply, err := r.control().Call(ctx, machine.Request{List: true})
	for i := range 2 {
		if err == nil && reply.Services[managerName(i)] == 0 {
			r.problem(fmt.Errorf("%s has ended", managerName(i)))
		}
	}
	next := r.first
	err = errors.Join(err, within(ctx, 90*time.Second, func() (bool, error) {
		p := r.create(ctx, next)
		next = r.first + (next+1-r.first)%tenants
		if p != nil && p.Annotations[wellknown.AnnotationPinnedNode] != "" {
			r.again = time.Since(r.endedAt)
			return true, nil
		}
		return false, pause(ctx, 200*time.Millisecond)
	}))
	if err != nil {
		r.problem(fmt.Errorf("no pod is pinned any more: %w", err))
	}
	for _, p := range r.made { // the nodes have room for so many
		err := r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if ignoreNotFound(err) != nil {
			r.problem(err)
		}
	}
	return ctx.Err()
}

func (r *faultRun) problem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = append(r.fail, err)
}

// create creates a pod with a reservation in a namespace. It returns nil if that failed.
func (r *faultRun) create(ctx context.Context, namespace int) *corev1.Pod {
	r.mu.Lock()
	i := namespace + r.next[namespace]*namespaces
	r.next[namespace]++
	r.mu.Unlock()
	p := r.population.pod(i)
	if i >= r.population.Reservations {
		r.problem(fmt.Errorf("too few reservations in %s", p.Namespace))
		return nil
	}
	began := time.Now()
	made, err := r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		r.problem(err)
		return nil
	}
	if took := time.Since(began); took > startsSoon {
		r.problem(fmt.Errorf("the creation of %s took %s", byName(p), took))
	}
	r.podTimes.created(made, time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, made)
	return made
}

// traffic creates pods in all namespaces, those of each second at once, as when a node is drained.
func (r *faultRun) traffic(ctx context.Context) {
	steadily(ctx, int(r.lasting.Seconds()), 1, func(second int) {
		var burst sync.WaitGroup
		for i := range r.rate {
			burst.Go(func() { r.create(ctx, r.first+(second*r.rate+i)%tenants) })
		}
		burst.Wait()
	})
}

func (r *faultRun) rbac(ctx context.Context) error {
	bindings := r.client.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(ctx, wellknown.ManagerName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := bindings.Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	r.traffic(ctx)
	binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}
	_, err = bindings.Create(ctx, binding, metav1.CreateOptions{})
	return err
}

func (r *faultRun) stalledWatch(ctx context.Context) error {
	resume := r.proxy.stall()
	defer resume()
	r.traffic(ctx)
	return nil
}

func (r *faultRun) deadConnections(ctx context.Context) error {
	r.proxy.kill()
	r.traffic(ctx)
	return nil
}

func (r *faultRun) slowCalls(ctx context.Context) error {
	r.proxy.delay.Store(int64(5 * time.Second))
	defer r.proxy.delay.Store(0)
	r.traffic(ctx)
	return nil
}

func (r *faultRun) killed(ctx context.Context) error {
	var creating sync.WaitGroup
	creating.Go(func() { r.traffic(ctx) })
	err := pause(ctx, 1500*time.Millisecond)
	for i := range 2 {
		err = errors.Join(err, r.control().Kill(ctx, managerName(i)))
	}
	creating.Wait()
	for i := range 2 {
		err = errors.Join(err, r.runManager(ctx, i))
	}
	err = errors.Join(err, r.managerReady(ctx, 0))
	r.endedAt = time.Now()
	return err
}

// podTimes has the times of pods, from a watch.
type podTimes struct {
	key  func(*corev1.Pod) string
	mu   sync.Mutex
	pods map[string]*podTime
}

func byName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
func byUID(p *corev1.Pod) string  { return string(p.UID) }

// podTime has the times of a pod, zero for what has not happened.
type podTime struct {
	created, pinned, bound, running time.Time
	reason                          string
}

func watchPodTimes(ctx context.Context, client kubernetes.Interface) (*podTimes, error) {
	l := &podTimes{key: byName, pods: map[string]*podTime{}}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.see(o.(*corev1.Pod), time.Now()) },
		UpdateFunc: func(_, o any) { l.see(o.(*corev1.Pod), time.Now()) },
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("pods: %w", ctx.Err())
	}
	return l, nil
}

func (l *podTimes) of(p *corev1.Pod) *podTime {
	key := l.key(p)
	if l.pods[key] == nil {
		l.pods[key] = &podTime{}
	}
	return l.pods[key]
}

func (l *podTimes) created(p *corev1.Pod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.of(p)
	v.created, v.reason = at, p.Annotations[wellknown.AnnotationPinReason]
}

func (l *podTimes) see(p *corev1.Pod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.of(p)
	for _, c := range []struct {
		is bool
		at *time.Time
	}{
		{p.Annotations[wellknown.AnnotationPinnedNode] != "", &v.pinned},
		{p.Spec.NodeName != "", &v.bound},
		{p.Status.Phase == corev1.PodRunning, &v.running},
	} {
		if c.is && c.at.IsZero() {
			*c.at = at
		}
	}
}

func (l *podTimes) get(key string) podTime {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.pods[key]; v != nil {
		return *v
	}
	return podTime{}
}

// settled reports whether all these pods are bound.
func (l *podTimes) settled(pods []*corev1.Pod) bool {
	return !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return l.get(byName(p)).bound.IsZero() })
}
