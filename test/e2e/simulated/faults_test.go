package simulated

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// faults creates pods with reservations while something fails. Each of them has to be scheduled
// while it fails, may not be replaced, and pods have to be pinned again afterwards.
func (r *rig) faults() {
	rate, lasting := r.number("RATE", 10), time.Duration(r.number("SECONDS", 6))*time.Second
	c := population{nodes: 20, away: true, reservations: namespaces * max(30, 2*rate*int(lasting.Seconds())/tenants)}
	r.fill(c)
	through := r.newProxy()
	k := r.startKubelets(nil, false, nil)
	r.startManagers(through)
	for i, f := range []struct {
		name string
		run  func(r *faultRun) error
	}{
		{"rbac", (*faultRun).rbac},            // the managers have no permissions
		{"stalled", (*faultRun).stalledWatch}, // watches deliver no events, their connections stay open
		{"dead", (*faultRun).dead},            // the managers' connections break without an error
		{"slow", (*faultRun).slowCalls},       // the API server takes 5 s for each call of the managers
		{"killed", (*faultRun).killed},        // all managers are killed
	} {
		r.Run(f.name, func(t *testing.T) {
			own := *r
			own.T = t
			run := &faultRun{rig: &own, kubelets: k, population: c, proxy: through, first: i * tenants, rate: rate,
				lasting: lasting, next: map[int]int{}}
			run.all(f.run)
		})
	}
}

const tenants = 10 // namespaces of one fault

// A faultRun is one fault and the pods that are created meanwhile.
type faultRun struct {
	*rig
	kubelets   *kubelets
	population population
	proxy      *proxy
	first      int // namespace
	rate       int
	lasting    time.Duration

	mu   sync.Mutex
	next map[int]int // the next pod of a namespace
	made []*corev1.Pod
}

// all runs a fault, looks at its pods, and waits until pods are pinned again.
func (r *faultRun) all(fault func(*faultRun) error) {
	r.must(fault(r))
	ended := time.Now()
	var slowest time.Duration
	pinned := 0
	for _, p := range r.made {
		o := r.kubelets.get(nameOf(p))
		r.until("a pod that was created during the fault is bound", func() error {
			if o = r.kubelets.get(nameOf(p)); o.bound.IsZero() {
				return fmt.Errorf("%s has not started: %s", nameOf(p), describe(o.pod))
			}
			return nil
		})
		if o.pod.UID != p.UID {
			r.Errorf("%s was replaced", nameOf(p))
		}
		if slowest = max(slowest, o.bound.Sub(o.seen)); !o.pinned.IsZero() {
			pinned++
		}
	}
	next := 0
	r.until("pods are pinned again", func() error {
		next++
		p, err := r.create(r.first + next%tenants)
		if err != nil {
			r.Fatal(err)
		}
		if p.Annotations[wellknown.AnnotationPinnedNode] == "" {
			_ = pause(r.ctx, 200*time.Millisecond)
			return fmt.Errorf("%s is not pinned: %s", nameOf(p), p.Annotations[wellknown.AnnotationPinReason])
		}
		return nil
	})
	r.Logf("%d pods, %d pinned, the slowest bound after %v; pinned again %v after the fault", len(r.made), pinned,
		slowest.Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
	restarts, err := r.cluster.ControlRestarts(r.ctx)
	r.must(err)
	for i := range replicas {
		if n := restarts[managerName(i)]; n > 0 {
			r.Errorf("%s has ended by itself %d times", managerName(i), n)
		}
	}
	for _, p := range r.made { // the nodes have room for so many
		r.must(ignoreGone(r.client.CoreV1().Pods(p.Namespace).Delete(r.ctx, p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)})))
	}
}

// create creates a pod with a reservation in a namespace.
func (r *faultRun) create(namespace int) (*corev1.Pod, error) {
	r.mu.Lock()
	i := namespace + r.next[namespace]*namespaces
	r.next[namespace]++
	r.mu.Unlock()
	p := r.population.pod(i)
	if i >= r.population.reservations {
		return nil, fmt.Errorf("too few reservations in %s", p.Namespace)
	}
	p, err := r.client.CoreV1().Pods(p.Namespace).Create(r.ctx, p, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, p)
	return p, nil
}

// traffic creates pods in all namespaces, those of each second at once, as when a node is drained.
func (r *faultRun) traffic() error {
	var mu sync.Mutex
	var failed error
	steadily(r.ctx, int(r.lasting.Seconds()), 1, func(second int) {
		var burst sync.WaitGroup
		for i := range r.rate {
			burst.Go(func() {
				_, err := r.create(r.first + (second*r.rate+i)%tenants)
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			})
		}
		burst.Wait()
	})
	return failed
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

func (r *faultRun) rbac() error {
	bindings := r.client.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(r.ctx, wellknown.ManagerName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := bindings.Delete(r.ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = r.traffic()
	binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}
	_, err2 := bindings.Create(r.ctx, binding, metav1.CreateOptions{})
	return errors.Join(err, err2)
}

func (r *faultRun) stalledWatch() error {
	defer r.proxy.stall()()
	return r.traffic()
}

func (r *faultRun) dead() error {
	r.proxy.kill()
	return r.traffic()
}

func (r *faultRun) slowCalls() error {
	r.proxy.delay.Store(int64(5 * time.Second))
	defer r.proxy.delay.Store(0)
	return r.traffic()
}

func (r *faultRun) killed() error {
	failed := make(chan error)
	go func() { failed <- r.traffic() }()
	err := pause(r.ctx, 1500*time.Millisecond)
	for i := range replicas {
		err = errors.Join(err, r.control().Kill(r.ctx, managerName(i)))
	}
	err = errors.Join(err, <-failed)
	for i := range replicas {
		err = errors.Join(err, r.startManager(i))
	}
	return err
}
