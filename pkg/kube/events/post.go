package events

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube/live"
)

// controller is who reports.
const controller = "leasehold-agent"

// maxNote is what the API takes of a text.
const maxNote = 1024

// Event is the API's object of a notice. objectUID is the UID of the pod's object; node is who saw it.
func Event(n Notice, objectUID types.UID, node string) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	return &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: n.Namespace, Name: objectName(n)},
		EventTime:           metav1.NewMicroTime(n.Time),
		ReportingController: controller,
		ReportingInstance:   node,
		Action:              "Assign",
		Reason:              n.Reason,
		Type:                kind,
		Note:                cut(n.Text, maxNote),
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: n.Namespace, Name: n.Pod, UID: objectUID},
	}
}

// objectName is the same for the same thing, told again.
func objectName(n Notice) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", n.UID, n.Reason, n.About)
	if n.Reason != InvalidReservation {
		fmt.Fprintf(h, "\x00%d", n.Time.UnixNano())
	}
	pod := n.Pod
	if len(pod) > 230 {
		pod = strings.TrimRight(pod[:230], ".-")
	}
	return fmt.Sprintf("%s.%016x", pod, h.Sum64())
}

// cut shortens a text to so many bytes, never inside a letter.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// post creates the event. One that is there was told before; one whose namespace goes is told to nobody.
func post(ctx context.Context, client rest.Interface, e *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	err := client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
