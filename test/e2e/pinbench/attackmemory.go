package pinbench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// pprofPort is where the manager serves profiles, on the machine of the control plane. A profile of
// the heap begins with a garbage collection.
const pprofPort = 9473

// The texts that the attackers of the manager's memory write. Annotations have at most 256 KiB in
// all, and an object in etcd 1.5 MiB.
const (
	annotationBytes = 250 << 10
	statusBytes     = 1200 << 10
)

// keptShare is the part of the attackers' text by which the heap may grow.
const keptShare = 1. / 8

// AttackMiB is how much text each attack on the manager's memory writes.
var AttackMiB = 24

// memorySettle is how long the manager may take to read what was written last.
const memorySettle = 5 * time.Second

// fillMemory returns an attack that writes AttackMiB of text, in texts of the same size that
// differ. write writes the i-th text. The manager's heap must hardly grow.
func (a *attacks) fillMemory(size int, write func(ctx context.Context, i int, text string) error) func(
	context.Context) error {
	return func(ctx context.Context) error {
		if err := a.restart(ctx, fmt.Sprintf("--pprof-addr=:%d", pprofPort)); err != nil {
			return err
		}
		if err := a.servesTopology(ctx); err != nil {
			return err
		}
		before, err := a.heap(ctx)
		if err != nil {
			return err
		}
		err = a.each(ctx, "texts", AttackMiB<<20/size, func(ctx context.Context, i int) error {
			return write(ctx, i, fmt.Sprintf("%08d%s", i, strings.Repeat("x", size-8)))
		})
		if err != nil {
			return err
		}
		if err := pause(ctx, memorySettle); err != nil {
			return err
		}
		after, err := a.heap(ctx)
		if err != nil {
			return err
		}
		m, err := a.memory(ctx, managerName(0))
		if err != nil {
			return err
		}
		a.say("    %d MiB written: heap %.1f MiB before, %.1f MiB after; resident %d MiB, at most %d MiB", AttackMiB,
			before, after, m.now, m.peak)
		if limit := before + float64(AttackMiB)*keptShare; after > limit {
			return fmt.Errorf("the heap grows from %.1f to %.1f MiB, want at most %.1f", before, after, limit)
		}
		return nil
	}
}

// changed is the StatefulSet whose annotations changeAnnotation changes.
const changed = "changed"

// servesTopology makes the StatefulSet changed, and waits until the leader reads the annotations of
// StatefulSets, and has said that those are not valid.
func (a *attacks) servesTopology(ctx context.Context) error {
	a.namespace = victim
	sets := a.user.AppsV1().StatefulSets(victim)
	if err := ignoreNotFound(sets.Delete(ctx, changed, metav1.DeleteOptions{})); err != nil {
		return err
	}
	annotations := map[string]string{v1beta1.AnnotationGenerate: "true", v1beta1.AnnotationRequiredTopology: "!"}
	set, err := sets.Create(ctx, topology(changed, annotations), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = until(ctx, func() (bool, error) {
		events, err := a.user.EventsV1().Events(victim).List(ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == set.UID && e.Reason == "InvalidPersistentPodState"
		}), err
	})
	if err != nil {
		return fmt.Errorf("the manager does not say that annotations of %s are not valid: %w", changed, err)
	}
	return nil
}

// heap returns the size of the live objects of the manager, in MiB.
func (a *attacks) heap(ctx context.Context) (float64, error) {
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	status, body, err := get(ctx, client, "http://"+a.at(pprofPort)+"/debug/pprof/heap?gc=1&debug=1", "")
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("the manager's profile: status %d, %w", status, err)
	}
	for line := range strings.Lines(string(body)) {
		var bytes float64
		if n, _ := fmt.Sscanf(line, "# HeapAlloc = %f", &bytes); n == 1 {
			return bytes / (1 << 20), nil
		}
	}
	return 0, errors.New("the manager's profile has no HeapAlloc")
}

// topology returns a StatefulSet without pods that asks for a PersistentPodState.
func topology(name string, annotations map[string]string) *appsv1.StatefulSet {
	labels := map[string]string{"set": name}
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: containers("10m", "16Mi")}}}}
}

// changeAnnotation gives one StatefulSet another invalid list of labels. The API server makes one
// change of an object at a time.
func (a *attacks) changeAnnotation(ctx context.Context, _ int, text string) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: "!%s"}}}`, v1beta1.AnnotationRequiredTopology, text)
	_, err := a.user.AppsV1().StatefulSets(victim).Patch(ctx, changed, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// annotateSet creates a StatefulSet with an annotation of others.
func (a *attacks) annotateSet(ctx context.Context, i int, text string) error {
	_, err := a.user.AppsV1().StatefulSets(victim).Create(ctx,
		topology(fmt.Sprint("large-", i), map[string]string{"example.com/notes": text}), metav1.CreateOptions{})
	return err
}

// explainPod creates a pod that never starts, with an annotation of the manager.
func (a *attacks) explainPod(ctx context.Context, i int, text string) error {
	p := retainedPod(fmt.Sprint("explained-", i))
	p.Spec.SchedulerName = "none"
	p, err := a.user.CoreV1().Pods(victim).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, wellknown.AnnotationPinReason, text)
	_, err = a.user.CoreV1().Pods(victim).Patch(ctx, p.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// enlargeStatus has an agent write a reservation with a large status, unless the schema rejects it.
func (a *attacks) enlargeStatus(ctx context.Context, i int, text string) error {
	pod := fmt.Sprint("enlarged-", i)
	if err := a.hold(ctx, hostile, pod, "", lasting); err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status": {"podUID": %q}}`, text))
	err := a.agents[hostile].Status().Patch(ctx, &v1alpha1.IPReservation{ObjectMeta: a.reservationOf(hostile, pod)},
		patch)
	if apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
