package retention

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// controller is the value of reportingController in all Events of the agent.
const controller = "leasehold-agent"

// newEvent returns an Event of the agent on a node. The caller derives the name from what has
// happened, so that a repeated request does not create a second Event. The name has at most 253
// bytes. newEvent cuts the note to kube.MaxNote bytes.
func newEvent(regarding corev1.ObjectReference, name, node, action string, isWarning bool, reason, note string,
	at time.Time) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if isWarning {
		kind = corev1.EventTypeWarning
	}
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // the namespace of Events about cluster-scoped objects
	}
	return &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: name},
		EventTime:           metav1.NewMicroTime(at),
		ReportingController: controller,
		ReportingInstance:   node,
		Action:              action,
		Reason:              reason,
		Type:                kind,
		Note:                kube.Cut(note, kube.MaxNote),
		Regarding:           regarding,
	}
}

// eventOf returns the Event for a notice. objectUID is the UID of the pod in the API, and node is
// the node whose agent reports.
func eventOf(n notice, objectUID types.UID, node string) *eventsv1.Event {
	pod := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: n.Namespace, Name: n.Pod, UID: objectUID}
	return newEvent(pod, objectName(n), node, "Assign", n.Warning, n.Reason, n.Text, n.Time)
}

// objectName returns the name of the Event for a notice. The name contains the time of the notice,
// except for InvalidReservation: an invalid annotation is reported once as long as it has the same
// value.
func objectName(n notice) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", n.UID, n.Reason, n.Subject)
	if n.Reason != InvalidReservation {
		fmt.Fprintf(h, "\x00%d", n.Time.UnixNano())
	}
	return eventName(n.Pod, h.Sum64())
}

// eventName returns the name of an Event about an object: the name of the object, truncated if
// necessary, and the hash. The hash distinguishes the Events about one object.
func eventName(object string, hash uint64) string {
	if len(object) > 230 {
		object = strings.TrimRight(object[:230], ".-")
	}
	return fmt.Sprintf("%s.%016x", object, hash)
}

// post creates an Event in the API. It returns nil if the Event already exists, if its namespace
// does not exist, and if its namespace is being deleted.
func post(ctx context.Context, client rest.Interface, e *eventsv1.Event) error {
	err := client.Post().Timeout(kube.RequestTimeout).Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	isGone := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	if apierrors.IsAlreadyExists(err) || isGone {
		return nil
	}
	return err
}
