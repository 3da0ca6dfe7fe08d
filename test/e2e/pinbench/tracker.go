package pinbench

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A tracker records the newest pod of each name, and when it was first seen running.
type tracker struct {
	mu      sync.Mutex
	pods    map[types.NamespacedName]seen
	changed chan struct{} // closed at the next change
}

type seen struct {
	pod     *corev1.Pod
	running time.Time // zero: not yet
}

func track(ctx context.Context, client kubernetes.Interface) (*tracker, error) {
	t := &tracker{pods: map[types.NamespacedName]seen{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.put(o.(*corev1.Pod), time.Now()) },
		UpdateFunc: func(_, o any) { t.put(o.(*corev1.Pod), time.Now()) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			t.remove(o.(*corev1.Pod))
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("pods: %w", ctx.Err())
	}
	return t, nil
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

func (t *tracker) put(p *corev1.Pod, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := seen{pod: p}
	if old, ok := t.pods[nameOf(p)]; ok && old.pod.UID == p.UID {
		s.running = old.running
	}
	if s.running.IsZero() && p.Status.Phase == corev1.PodRunning {
		s.running = at
	}
	t.pods[nameOf(p)] = s
	t.wake()
}

func (t *tracker) remove(p *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.pods[nameOf(p)]; ok && old.pod.UID == p.UID {
		delete(t.pods, nameOf(p))
		t.wake()
	}
}

func (t *tracker) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *tracker) get(name types.NamespacedName) (seen, chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[name], t.changed
}

// running waits until a pod of that name with another UID than not runs. When ctx ends it returns
// the current pod and false.
func (t *tracker) running(ctx context.Context, name types.NamespacedName, not types.UID) (seen, bool) {
	for {
		s, changed := t.get(name)
		if s.pod != nil && s.pod.UID != not && !s.running.IsZero() {
			return s, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s, false
		}
	}
}

// gone waits until no pod of that name exists.
func (t *tracker) gone(ctx context.Context, name types.NamespacedName) error {
	for {
		s, changed := t.get(name)
		if s.pod == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("pod %v is still there: %w", name, ctx.Err())
		}
	}
}
