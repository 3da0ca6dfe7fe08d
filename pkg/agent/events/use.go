package events

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/agent/use"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

// repeat is how often the Events of a lasting state are created again. The API server keeps an
// Event for an hour by default.
const repeat = time.Hour

// The reasons of the Events about whether leasehold is in use.
const (
	RetentionInactive = "RetentionInactive" // on the node and its annotated pods: the runtime does not call leasehold
	RetentionUnknown  = "RetentionUnknown"  // on the node: whether the runtime calls leasehold is not known, and why
)

// InUse queues the Events that should exist while the networks of the node have these statuses. It
// does not block and is safe for concurrent use.
func (e *Task) InUse(statuses []cniconf.Status, now time.Time) {
	for _, event := range e.aboutUse(statuses, now) {
		e.queueOnce(event)
	}
}

// aboutUse returns the Events that should exist. There is an Event on the node for each network
// that is inactive or unknown, and an Event on each pod that requests retention for each inactive
// network.
func (e *Task) aboutUse(statuses []cniconf.Status, now time.Time) []*eventsv1.Event {
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Name, UID: types.UID(e.Name)}
	var out []*eventsv1.Event
	for _, s := range statuses {
		reason, text, about := RetentionInactive, "addresses are not retained", []corev1.ObjectReference{node}
		switch s.State {
		case cniconf.Active:
			continue
		case cniconf.Unknown:
			reason, text = RetentionUnknown, "whether addresses are retained is not known"
		case cniconf.Inactive:
			for _, p := range e.Retained() {
				about = append(about, podRef(p.Namespace, p.Name.Name, p.ObjectUID))
			}
		}
		text += ": " + s.Reason + ": "
		if s.Network != "" {
			text = "network " + s.Network + ": " + text
		}
		// Their names are the same in each pass, until the status changes or another period begins.
		for _, o := range about {
			message := s.Message
			if s.Reason == use.PodWithoutLease && o.Kind == "Pod" { // it may be another user's than that pod
				message = "a pod of this node has an address without a lease; " + use.OtherDirectories
			}
			out = append(out, newEvent(o, e.Name, "CheckRetention", true, reason, text+message, now,
				string(o.UID), s.Network, s.Reason, s.Since.UnixNano(), int64(now.Sub(s.Since)/repeat)))
		}
	}
	return out
}
