package retention

import (
	"cmp"
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

// newEvent returns an Event of the agent on a node. Its name is the name of the object, cut if
// necessary, and a hash of the object, the reason and the key, which says what has happened: a
// repeated request does not create a second Event. newEvent cuts the note to kube.MaxNote bytes.
func newEvent(regarding corev1.ObjectReference, node, action string, isWarning bool, reason, note string,
	at time.Time, key ...any) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if isWarning {
		kind = corev1.EventTypeWarning
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%#v", regarding.Kind, regarding.UID, reason, key)
	return &eventsv1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			// The namespace of Events about cluster-scoped objects is the default one.
			Namespace: cmp.Or(regarding.Namespace, metav1.NamespaceDefault),
			Name:      fmt.Sprintf("%s.%016x", strings.TrimRight(kube.Cut(regarding.Name, 230), ".-"), h.Sum64()),
		},
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

// podRef returns the reference to a pod with the UID in the API.
func podRef(namespace, name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid}
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
