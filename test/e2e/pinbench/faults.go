package pinbench

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
	{"rbac", "the manager has no permission to write", (*faultRun).rbac},
	{"policy", "a policy engine rejects each write of the manager", (*faultRun).policy},
	{"policy-of-one", "the same in one namespace", (*faultRun).policyOfOne},
	{"policy-of-tenant", "the same in one tenant's namespaces, where all gates are used first",
		(*faultRun).policyOfTenant},
	{"stalled", "watches deliver no events, their connections stay open", (*faultRun).stalledWatch},
	{"dead", "the managers' connections break without an error", (*faultRun).deadConnections},
	{"slow", "the API server takes 5 s for each call", (*faultRun).slowCalls},
	{"killed", "both managers are killed while pods are gated", (*faultRun).killed},
	{"annotations", "one tenant's pods have the largest possible annotations", (*faultRun).annotations},
}

const (
	gateMost   = 20              // pods that are held back at a time
	startsSoon = 5 * time.Second // a pod that was not gated; the machine is small
	tenants    = 10              // namespaces of one fault
	slowCall   = 500 * time.Millisecond
)

// Faults injects each fault whose name matches while pods are created, with two replicas of the
// manager. It reports whether all requirements were met. The faults are in one function because
// they share the namespaces and the gates that are counted.
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
	fmt.Fprint(table, "FAULT\tPODS\tGATED\tAT A TIME\tLONGEST\tLIMIT\tOTHERS' SLOWEST START\tPINNED AGAIN AFTER\t\n")
	fine = true
	for i, f := range faultList {
		if !match.MatchString(f.name) {
			continue
		}
		b.say("%s: %s", f.name, f.about)
		r := &faultRun{Bench: b, population: c, proxy: through, podTimes: watch, first: i * tenants, rate: rate,
			lasting: lasting}
		if err := r.all(ctx, f); err != nil {
			if ctx.Err() != nil {
				return false, err
			}
			r.problem(err)
		}
		problems := r.judge()
		for _, p := range problems {
			b.say("    %s", p)
		}
		fine = fine && len(problems) == 0
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", f.name, len(r.made), r.gated, r.atATime,
			seconds(r.longest), seconds(r.limit()), seconds(r.slowest), seconds(r.again),
			map[bool]string{true: "", false: "FAILED"}[len(problems) == 0])
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

	mu    sync.Mutex
	next  map[int]int // the next pod of a namespace
	made  []string
	fail  []error
	calls []time.Duration // what a call has taken

	// endedAt is when the managers could work again. mayStayGated are the namespaces in which a
	// gate may stay until then.
	endedAt      time.Time
	mayStayGated func(namespace string) bool
	// slow is the injected latency of a call.
	slow time.Duration
	// spared are namespaces without the fault, whose pods must be nominated.
	spared func(namespace string) bool

	gated, atATime          int
	longest, slowest, again time.Duration
}

func (r *faultRun) limit() time.Duration { return 3*r.latency() + 2*time.Second }

// latency returns how long a call takes.
func (r *faultRun) latency() time.Duration {
	r.mu.Lock()
	took := slices.Sorted(slices.Values(r.calls))
	r.mu.Unlock()
	return max(r.slow, percentile(took, 99))
}

// exited adds a problem for each manager that does not run.
func (r *faultRun) exited(ctx context.Context) {
	reply, err := r.control().Call(ctx, machine.Request{List: true})
	if err != nil {
		r.problem(err)
		return
	}
	for i := range 2 {
		if reply.Services[managerName(i)] == 0 {
			r.problem(fmt.Errorf("%s has ended", managerName(i)))
		}
	}
}

// all runs a fault, waits for its pods, and measures when pods are pinned again.
func (r *faultRun) all(ctx context.Context, f fault) error {
	r.next = map[int]int{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pinging sync.WaitGroup
	pinging.Go(func() { r.ping(ctx) })
	defer pinging.Wait()
	defer cancel()
	began := time.Now()
	if err := f.run(r, ctx); err != nil {
		return err
	}
	if r.endedAt.IsZero() {
		r.endedAt = time.Now()
	}
	_ = within(ctx, time.Minute, func() (bool, error) { return r.podTimes.settled(r.made), nil })
	r.measure(began)
	r.exited(ctx)
	next := r.first
	err := within(ctx, 90*time.Second, func() (bool, error) {
		if r.pinnedAgain(began) {
			return true, nil
		}
		r.create(ctx, next, 1, nil)
		next = r.first + (next+1-r.first)%tenants
		return false, errors.Join(pause(ctx, time.Second), errors.Join(r.fail...))
	})
	if err != nil {
		last := r.podTimes.get(r.made[len(r.made)-1])
		r.fail = append(r.fail, fmt.Errorf("no pod is pinned any more: %s", last.reason))
	}
	for _, key := range r.made { // the nodes have room for so many
		namespace, name, _ := strings.Cut(key, "/")
		err := r.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if ignoreNotFound(err) != nil {
			r.problem(err)
		}
	}
	return nil
}

// pinnedAgain reports whether a pod that was created after the fault has been nominated, and
// records how long after the end of the fault the first one was.
func (r *faultRun) pinnedAgain(began time.Time) bool {
	from := began
	if r.endedAt.After(began) {
		from = r.endedAt
	}
	for _, key := range r.made {
		if l := r.podTimes.get(key); l.gated && !l.nominated.IsZero() && l.created.After(from) {
			if after := l.nominated.Sub(from); r.again == 0 || after < r.again {
				r.again = after
			}
		}
	}
	return r.again > 0
}

// ping measures how long a call of the managers takes.
func (r *faultRun) ping(ctx context.Context) {
	config := rest.CopyConfig(r.api)
	config.Host, config.CAData, config.CAFile = r.proxy.url, r.proxy.ca, ""
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	managers, err := clientcmd.BuildConfigFromFlags("", r.cluster.Scratch(wellknown.ManagerName+".kubeconfig"))
	if err != nil {
		r.problem(err)
		return
	}
	config.BearerToken = managers.BearerToken
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		r.problem(err)
		return
	}
	for pause(ctx, 200*time.Millisecond) == nil {
		began := time.Now()
		_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			r.mu.Lock()
			r.calls = append(r.calls, time.Since(began))
			r.mu.Unlock()
		}
	}
}

func (r *faultRun) problem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = append(r.fail, err)
}

// create creates pods with reservations in a namespace, and returns their keys.
func (r *faultRun) create(ctx context.Context, namespace, count int, change func(*corev1.Pod)) (keys []string) {
	for range count {
		r.mu.Lock()
		n := r.next[namespace]
		r.next[namespace]++
		r.mu.Unlock()
		i := namespace + n*namespaces
		p := r.population.pod(i)
		if i >= r.population.Reservations {
			r.problem(fmt.Errorf("too few reservations for %d pods in %s", n, p.Namespace))
			return []string{p.Namespace + "/" + p.Name}
		}
		if change != nil {
			change(p)
		}
		key := p.Namespace + "/" + p.Name
		made, err := r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			r.problem(err)
		} else {
			r.podTimes.created(made, time.Now())
		}
		r.mu.Lock()
		r.made = append(r.made, key)
		r.mu.Unlock()
		keys = append(keys, key)
	}
	return keys
}

// traffic creates pods in all namespaces, those of each second at once, as when a node is drained.
func (r *faultRun) traffic(ctx context.Context) {
	steadily(ctx, int(r.lasting.Seconds()), 1, func(second int) {
		var burst sync.WaitGroup
		for i := range r.rate {
			burst.Go(func() { r.create(ctx, r.first+(second*r.rate+i)%tenants, 1, nil) })
		}
		burst.Wait()
	})
}

// steady creates pods in some namespaces, one at a time.
func (r *faultRun) steady(ctx context.Context, first, namespaces int) {
	steadily(ctx, r.rate*int(r.lasting.Seconds()), r.rate, func(i int) { r.create(ctx, first+i%namespaces, 1, nil) })
}

// allNamespaces reports true for every namespace.
func allNamespaces(string) bool { return true }

func (r *faultRun) rbac(ctx context.Context) error {
	r.mayStayGated = allNamespaces
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
	r.endedAt = time.Now()
	return err
}

func (r *faultRun) policy(ctx context.Context) error {
	r.mayStayGated = allNamespaces
	return r.refuse(ctx, nil, r.traffic)
}

func (r *faultRun) policyOfOne(ctx context.Context) error {
	one := r.population.namespace(r.first)
	r.spared = func(namespace string) bool { return namespace != one }
	r.mayStayGated = func(namespace string) bool { return namespace == one }
	return r.refuse(ctx, []string{one}, func(ctx context.Context) { r.steady(ctx, r.first, tenants) })
}

// policyOfTenant uses all gates for one tenant before others' pods are created. Until the managers
// know that only the tenant's gates cannot be lifted, the others' pods may get no gates.
func (r *faultRun) policyOfTenant(ctx context.Context) error {
	const mine = 3
	var names []string
	for i := range mine {
		names = append(names, r.population.namespace(r.first+i))
	}
	first := r.population.namespace(r.first + mine)
	r.mayStayGated = func(namespace string) bool { return slices.Contains(names, namespace) }
	r.spared = func(namespace string) bool { return namespace != first && !slices.Contains(names, namespace) }
	return r.refuse(ctx, names, func(ctx context.Context) {
		var burst sync.WaitGroup
		for i := range 2 * gateMost {
			burst.Go(func() { r.create(ctx, r.first+i%mine, 1, nil) })
		}
		burst.Wait()
		for range 6 {
			r.create(ctx, r.first+mine, 1, nil)
			_ = pause(ctx, 500*time.Millisecond)
		}
		r.steady(ctx, r.first+mine+1, tenants-mine-1)
	})
}

// refuse rejects the managers' writes of pods by a policy, in some namespaces or all, while pods
// are created. It is one sequence of steps.
func (r *faultRun) refuse(ctx context.Context, namespaces []string, creating func(context.Context)) error {
	const name = "refuses-the-manager"
	rules := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"UPDATE"},
			Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
				Resources: []string{"pods", "pods/status"}}}}}}
	if len(namespaces) > 0 {
		rules.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces}}}
	}
	user := fmt.Sprintf("system:serviceaccount:%s:%s", wellknown.Namespace, wellknown.ManagerName)
	policies := r.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := r.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: rules,
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "manager",
				Expression: "request.userInfo.username == '" + user + "'"}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false",
				Message: "pods must not be changed here"}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = bindings.Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	in := r.population.namespace(r.first)
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "probe"},
		Spec: corev1.PodSpec{NodeName: r.population.nodeName(0), Containers: containers("1m", "1Mi")}}
	if _, err := r.client.CoreV1().Pods(in).Create(ctx, probe, metav1.CreateOptions{}); err != nil {
		return err
	}
	as := rest.CopyConfig(r.api)
	as.Impersonate.UserName, as.Impersonate.Groups = user, []string{"system:masters", "system:authenticated"}
	manager, err := kubernetes.NewForConfig(as)
	if err != nil {
		return err
	}
	refused := func() bool {
		_, err := manager.CoreV1().Pods(in).Patch(ctx, probe.Name, types.MergePatchType,
			[]byte(`{}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	}
	if err := until(ctx, func() (bool, error) { return refused(), nil }); err != nil {
		return fmt.Errorf("the policy does not reject writes: %w", err)
	}
	creating(ctx)
	err = errors.Join(bindings.Delete(ctx, name, metav1.DeleteOptions{}),
		policies.Delete(ctx, name, metav1.DeleteOptions{}))
	if err != nil {
		return err
	}
	err = until(ctx, func() (bool, error) { return !refused(), nil })
	r.endedAt = time.Now()
	return err
}

func (r *faultRun) stalledWatch(ctx context.Context) error {
	resume := r.proxy.stall()
	defer resume()
	r.traffic(ctx)
	return pause(ctx, r.limit())
}

func (r *faultRun) deadConnections(ctx context.Context) error {
	r.endedAt = time.Now()
	r.proxy.kill()
	r.traffic(ctx)
	return nil
}

func (r *faultRun) slowCalls(ctx context.Context) error {
	r.slow = 5 * time.Second
	r.proxy.delay.Store(int64(r.slow))
	defer r.proxy.delay.Store(0)
	r.traffic(ctx)
	return pause(ctx, r.limit())
}

func (r *faultRun) killed(ctx context.Context) error {
	r.mayStayGated = allNamespaces
	r.proxy.delay.Store(int64(time.Second)) // so that pods are on their way
	var creating sync.WaitGroup
	creating.Go(func() { r.traffic(ctx) })
	err := pause(ctx, 1500*time.Millisecond)
	for i := range 2 {
		err = errors.Join(err, r.control().Kill(ctx, managerName(i)))
	}
	r.mu.Lock()
	gated := r.podTimes.waiting(r.made)
	r.mu.Unlock()
	r.say("    %d pods are gated when the managers are killed", gated)
	if gated < 2 {
		r.problem(errors.New("the managers were killed too late or too early: want several gated pods then"))
	}
	r.proxy.delay.Store(0)
	creating.Wait()
	for i := range 2 {
		err = errors.Join(err, r.runManager(ctx, i))
	}
	err = errors.Join(err, r.managerReady(ctx, 0))
	r.endedAt = time.Now()
	return err
}

// annotations creates pods of one tenant with 50,000 annotations, and with the largest possible
// ones.
func (r *faultRun) annotations(ctx context.Context) error {
	one := r.population.namespace(r.first)
	r.spared = func(namespace string) bool { return namespace != one }
	var creating sync.WaitGroup
	began := time.Now()
	creating.Go(func() {
		// One at a time, because each takes the API server and the watchers a part of a second.
		for i := 0; time.Since(began) < r.lasting; i++ {
			r.create(ctx, r.first, 1, func(p *corev1.Pod) {
				if i%2 == 0 {
					for k := range 50000 {
						p.Annotations[strconv.FormatInt(int64(k), 36)] = ""
					}
					return
				}
				size := 0
				for key, value := range p.Annotations {
					size += len(key) + len(value)
				}
				p.Annotations["large"] = strings.Repeat("a", 256<<10-size-len("large"))
			})
			_ = pause(ctx, 2*time.Second)
		}
	})
	defer creating.Wait()
	r.steady(ctx, r.first+1, tenants-1)
	return nil
}

// measure computes the results from the times of the pods.
func (r *faultRun) measure(began time.Time) {
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, key := range r.made {
		l := r.podTimes.get(key)
		if l.created.IsZero() {
			continue
		}
		end := time.Now()
		if !l.gated {
			if !l.bound.IsZero() {
				end = l.bound
			}
			r.slowest = max(r.slowest, end.Sub(l.created))
			continue
		}
		r.gated++
		if !l.lifted.IsZero() {
			end = l.lifted
		}
		changes = append(changes, change{l.created, 1}, change{end, -1})
		from := l.created
		if end.After(r.endedAt) && r.endedAt.After(from) {
			from = r.endedAt
		}
		namespace, _, _ := strings.Cut(key, "/")
		if r.mayStayGated == nil || !r.mayStayGated(namespace) {
			from = l.created
		} else if !end.After(r.endedAt) {
			continue
		}
		r.longest = max(r.longest, end.Sub(from))
	}
	slices.SortFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	now := 0
	for _, c := range changes {
		now += c.by
		r.atATime = max(r.atATime, now)
	}
}

func (r *faultRun) judge() (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, err := range r.fail {
		bad("%v", err)
	}
	most := gateMost
	if r.spared != nil {
		most += gateMost // the pods of one tenant wait, and others' go on being gated
	}
	if r.atATime > most {
		bad("%d pods are gated at a time, want at most %d", r.atATime, most)
	}
	if r.longest > r.limit() {
		bad("a pod is gated for %v, want at most %v", r.longest, r.limit())
	}
	if r.slowest > startsSoon {
		bad("a pod that was not gated starts after %v", r.slowest)
	}
	waiting, unpinned, why := 0, 0, ""
	for _, key := range r.made {
		l := r.podTimes.get(key)
		if l.bound.IsZero() {
			waiting++
		}
		if namespace, _, _ := strings.Cut(key, "/"); r.spared != nil && r.spared(namespace) && l.nominated.IsZero() {
			unpinned++
			why = l.reason
		}
	}
	if waiting > 0 {
		bad("%d pods have not started", waiting)
	}
	// With slow calls gates are lifted late, so the managers use fewer.
	if slow := r.latency() > slowCall; unpinned > 0 && slow {
		r.say("    %d pods of other tenants are not nominated; calls take %v here", unpinned, r.latency())
	} else if unpinned > 0 {
		bad("%d pods of other tenants are not nominated: %s", unpinned, why)
	}
	return problems
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
	created                  time.Time
	gated                    bool // at its creation
	reason                   string
	lifted, nominated, bound time.Time
	running                  time.Time
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
	v.created, v.gated, v.reason = at, len(p.Spec.SchedulingGates) > 0, p.Annotations[wellknown.AnnotationPinReason]
}

func (l *podTimes) see(p *corev1.Pod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.of(p)
	for _, c := range []struct {
		is bool
		at *time.Time
	}{
		{len(p.Spec.SchedulingGates) == 0, &v.lifted},
		{p.Status.NominatedNodeName != "", &v.nominated},
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
func (l *podTimes) settled(keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return l.get(key).bound.IsZero() })
}

// waiting returns how many of these pods are gated.
func (l *podTimes) waiting(keys []string) (n int) {
	for _, key := range keys {
		if v := l.get(key); v.gated && v.lifted.IsZero() {
			n++
		}
	}
	return n
}
