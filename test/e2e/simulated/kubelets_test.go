package simulated

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// How long a pod takes, as with a real kubelet: from its binding to ADD, from there
// to Ready, and from DEL to the deletion of the object.
const (
	begins       = 500 * time.Millisecond
	becomesReady = time.Second
	ends         = time.Second
)

// kubelets run the pods of all nodes.
type kubelets struct {
	*rig
	agents *agents
	// containers are those of pods that run from the start, by UID. Their objects are never
	// changed.
	containers map[types.UID]string

	mu   sync.Mutex
	pods map[types.NamespacedName]*corev1.Pod // the newest of each name
	stop map[types.UID]func()                 // of the pods that are run
	wg   sync.WaitGroup
}

// startKubelets starts the kubelets. They end with the test.
func (r *rig) startKubelets(a *agents, containers map[types.UID]string) *kubelets {
	ctx, cancel := context.WithCancel(r.ctx)
	k := &kubelets{rig: r, agents: a, containers: containers,
		pods: map[types.NamespacedName]*corev1.Pod{}, stop: map[types.UID]func(){}}
	factory := informers.NewSharedInformerFactory(r.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	r.must(informer.SetTransform(slim))
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.changed(ctx, o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { k.changed(ctx, o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			k.deleted(o.(*corev1.Pod))
		},
	})
	r.must(err)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		r.Fatal("pods cannot be listed")
	}
	r.Cleanup(func() { cancel(); factory.Shutdown(); k.wg.Wait() })
	return k
}

// slim removes from a pod what nothing here reads. There may be 100,000 pods.
func slim(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp, Annotations: p.Annotations}}
	s.Spec.NodeName = p.Spec.NodeName
	s.Status.Phase, s.Status.PodIP, s.Status.Conditions = p.Status.Phase, p.Status.PodIP, p.Status.Conditions
	return s, nil
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// changed records a pod, and starts or stops it.
func (k *kubelets) changed(ctx context.Context, p *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[nameOf(p)] = p
	if p.Spec.NodeName == "" || p.Namespace == kube.Namespace {
		return
	}
	stop := k.stop[p.UID]
	if stop == nil && p.Status.Phase == corev1.PodPending {
		stopped, cancel := context.WithCancel(ctx)
		k.stop[p.UID], stop = cancel, cancel
		k.wg.Go(func() { k.live(ctx, stopped, p) })
	}
	if stop != nil && p.DeletionTimestamp != nil {
		stop()
	}
}

func (k *kubelets) deleted(p *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if newest := k.pods[nameOf(p)]; newest != nil && newest.UID == p.UID {
		delete(k.pods, nameOf(p))
	}
	if stop := k.stop[p.UID]; stop != nil {
		stop()
		delete(k.stop, p.UID)
	}
}

// get returns the newest pod of a name, nil if there is none.
func (k *kubelets) get(name types.NamespacedName) *corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pods[name]
}

// live runs a pod until stopped is done. It stops at once when ctx is.
func (k *kubelets) live(ctx, stopped context.Context, p *corev1.Pod) {
	container, runs := k.containers[p.UID]
	if !runs {
		container = rand.Text()
		_ = pause(ctx, begins)
		k.retry(stopped, "starting", p, func() error {
			address, err := k.agents.add(ctx, p, container)
			if err != nil {
				return err
			}
			_ = pause(ctx, becomesReady)
			return ignoreGone(k.report(ctx, p, address))
		})
	}
	<-stopped.Done()
	k.retry(ctx, "stopping", p, func() error { return k.agents.del(ctx, p, container) })
	_ = pause(ctx, ends)
	k.retry(ctx, "deleting", p, func() error {
		return ignoreGone(k.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}}))
	})
}

// retry calls do each second until it returns nil or ctx is done.
func (k *kubelets) retry(ctx context.Context, what string, p *corev1.Pod, do func() error) {
	for ctx.Err() == nil {
		err := do()
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			k.Logf("%s %s: %v", what, nameOf(p), err)
		}
		_ = pause(ctx, time.Second)
	}
}

// ignoreGone returns nil if an object or the one with the same UID does not exist any more.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// report sets the status of a pod to running and ready.
func (k *kubelets) report(ctx context.Context, p *corev1.Pod, address netip.Addr) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: address.String(),
		PodIPs: []corev1.PodIP{{IP: address.String()}}}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
			LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

// running waits until a pod of a name with another UID runs. Any goroutine may call it, so it
// returns an error if the pod does not.
func (k *kubelets) running(ctx context.Context, name types.NamespacedName, not types.UID) error {
	return within(ctx, limit, func() error {
		if p := k.get(name); p == nil || p.UID == not || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s does not run: %+v", name, p)
		}
		return nil
	})
}

// gone waits until a pod with a UID is gone.
func (k *kubelets) gone(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	return within(ctx, limit, func() error {
		if p := k.get(name); p != nil && p.UID == uid {
			return fmt.Errorf("%s is still there", name)
		}
		return nil
	})
}
