package control

import (
	"context"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// MaxReportAge is the age up to which a pod gets an Event about its creation. Older pods get none,
// so that a new leader does not repeat the Events of the former leader.
const MaxReportAge = 30 * time.Second

// Warn writes a warning Event. It cuts the note to the length that the API server accepts: notes
// may have text that users write, and client-go keeps each Event for some minutes.
func Warn(events recorder.EventRecorder, regarding, related runtime.Object, reason, action, note string) {
	events.Eventf(regarding, related, corev1.EventTypeWarning, reason, action, "%s", kube.Cut(note, kube.MaxNote))
}

// Delete deletes an object if it still has the UID of o and that resource version. It reports false
// if the object has changed or is gone.
func Delete(ctx context.Context, c client.Client, o client.Object, version string) (deleted bool, err error) {
	err = c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID()), ResourceVersion: &version})
	return err == nil, IgnoreRace(err)
}

// NodeAffinity returns the node affinity of a pod, which may be changed. It adds an empty one if
// the pod has none.
func NodeAffinity(pod *corev1.Pod) *corev1.NodeAffinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return pod.Spec.Affinity.NodeAffinity
}

// RequiredTerms returns the terms of the node affinity that a pod requires.
func RequiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// SizeOfSelectors returns how many labels, terms, requirements and values the node selectors of a
// pod have.
func SizeOfSelectors(pod *corev1.Pod) int {
	size := len(pod.Spec.NodeSelector)
	for _, t := range RequiredTerms(pod) {
		size++
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			size += 1 + len(e.Values)
		}
	}
	return size
}

// Identity returns the fields of an object's metadata that identify the object and its state, and
// its creation and deletion time.
func Identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: Intern(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		Generation: m.Generation, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// Intern returns a string equal to s. Equal strings that Intern returns share their memory, which
// saves memory where thousands of objects have the same value.
func Intern(s string) string { return unique.Make(s).Value() }

// Pick returns the entries of a map with the given keys, nil if there are none.
func Pick(from map[string]string, keys ...string) map[string]string {
	var picked map[string]string
	for _, key := range keys {
		if value, ok := from[key]; ok {
			if picked == nil {
				picked = map[string]string{}
			}
			picked[key] = value
		}
	}
	return picked
}

// IgnoreRace returns nil for an error which only says that another replica or a controller has
// changed or deleted the object.
func IgnoreRace(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
