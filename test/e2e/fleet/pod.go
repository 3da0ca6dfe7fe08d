package fleet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
)

type podKey = types.UID

// How long a pod takes with Config.Slow: from its binding to ADD, from there to Ready, and from DEL
// to the deletion of the object.
const (
	begins       = 500 * time.Millisecond
	becomesReady = time.Second
	ends         = time.Second
)

// wait waits if the fleet is slow.
func (f *Fleet) wait(ctx context.Context, d time.Duration) {
	if f.Slow {
		_ = pause(ctx, d)
	}
}

// A pod is a pod that a node runs, from its binding until its DEL.
type pod struct {
	node *Node
	stop chan struct{} // closed when the pod has to stop
	once sync.Once

	netns *namespace
}

func (p *pod) close() {
	if p.netns != nil {
		p.netns.close()
		p.netns = nil
	}
}

// watchPods starts and stops the pods of the fleet's nodes.
func (f *Fleet) watchPods(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(f.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.SetTransform(kubeletsPod); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.sync(ctx, o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { f.sync(ctx, o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			f.end(o.(*corev1.Pod))
			if f.Gone != nil {
				f.Gone(o.(*corev1.Pod))
			}
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("pods: %w", ctx.Err())
	}
	f.wg.Go(func() { <-ctx.Done(); factory.Shutdown() })
	return nil
}

// kubeletsPod removes from a pod what a simulated kubelet does not read. There may be 100,000 pods.
func kubeletsPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp, Annotations: p.Annotations}}
	slim.Spec.NodeName, slim.Spec.SchedulingGates = p.Spec.NodeName, p.Spec.SchedulingGates
	for _, c := range p.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
	}
	slim.Status.Phase, slim.Status.NominatedNodeName = p.Status.Phase, p.Status.NominatedNodeName
	return slim, nil
}

func (f *Fleet) sync(ctx context.Context, object *corev1.Pod) {
	if f.Seen != nil {
		f.Seen(object)
	}
	n := f.nodes[object.Spec.NodeName]
	if n == nil {
		return
	}
	if object.DeletionTimestamp != nil {
		f.end(object)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods[object.UID] != nil || object.Status.Phase != corev1.PodPending {
		return
	}
	p := &pod{node: n, stop: make(chan struct{})}
	f.pods[object.UID] = p
	id, isRunning := f.running[object.UID]
	if !isRunning {
		id = containerID()
	}
	if object.DeletionTimestamp != nil {
		p.once.Do(func() { close(p.stop) })
	}
	f.wg.Go(func() { f.live(ctx, p, object, id, isRunning) })
}

func (f *Fleet) end(object *corev1.Pod) {
	f.mu.Lock()
	p := f.pods[object.UID]
	f.mu.Unlock()
	if p != nil {
		p.once.Do(func() { close(p.stop) })
	}
}

// live runs a pod until it is stopped. When ctx is done it leaves the cleanup to Wait.
func (f *Fleet) live(ctx context.Context, p *pod, object *corev1.Pod, id string, isRunning bool) {
	if isRunning || f.run(ctx, p, object, id) {
		select {
		case <-p.stop:
		case <-ctx.Done():
			return
		}
	}
	for ctx.Err() == nil {
		err := f.stop(ctx, p, object, id)
		if err == nil {
			break
		}
		f.warn(ctx, "stopping a pod failed", "error", err)
		pause(ctx, time.Second)
	}
	f.wait(ctx, ends)
	if ctx.Err() != nil {
		return
	}
	p.close()
	err := f.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &object.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		f.warn(ctx, "deleting a pod failed", "pod", object.Namespace+"/"+object.Name, "error", err)
	}
	f.mu.Lock()
	delete(f.pods, object.UID)
	f.mu.Unlock()
}

// run creates the sandbox, with retries, and reports its status. It returns false if the pod was
// stopped before.
func (f *Fleet) run(ctx context.Context, p *pod, object *corev1.Pod, id string) bool {
	f.wait(ctx, begins)
	for {
		addr, err := f.sandbox(ctx, p, object, id)
		if err == nil {
			f.wait(ctx, becomesReady)
			err = f.report(ctx, p.node, object, addr)
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return true
		}
		f.warn(ctx, "starting a pod failed", "error", err)
		select {
		case <-p.stop:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
	}
}

func (f *Fleet) stop(ctx context.Context, p *pod, object *corev1.Pod, id string) error {
	if f.Runtime != nil {
		return f.Runtime.Del(ctx, p.node.Name, object, id)
	}
	return f.del(ctx, p.node, object, id, p.netnsPath())
}

func (f *Fleet) sandbox(ctx context.Context, p *pod, object *corev1.Pod, id string) (netip.Addr, error) {
	if f.Runtime != nil {
		return f.Runtime.Add(ctx, p.node.Name, object, id)
	}
	if p.netns == nil {
		netns, err := newNamespace(p.node.netns(), id)
		if err != nil {
			return netip.Addr{}, err
		}
		p.netns = netns
	}
	return f.add(ctx, p.node, object, id, p.netns.path)
}

func (p *pod) netnsPath() string {
	if p.netns == nil {
		return ""
	}
	return p.netns.path
}

// report sets the status of the pod to running and ready.
func (f *Fleet) report(ctx context.Context, n *Node, object *corev1.Pod, addr netip.Addr) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: addr.String(),
		PodIPs: []corev1.PodIP{{IP: addr.String()}}}
	if n.Addr.IsValid() {
		status.HostIP = n.Addr.String()
	}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
			LastTransitionTime: now})
	}
	for _, c := range object.Spec.Containers {
		started := true
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
			Ready:   true,
			Started: &started, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	patch, err := json.Marshal(fields{"metadata": fields{"uid": object.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Pods(object.Namespace).Patch(ctx, object.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

func containerID() string {
	var id [32]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
