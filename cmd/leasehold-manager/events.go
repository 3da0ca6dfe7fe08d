package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// GetEventRecorder returns a recorder whose Events have short notes (see shortNotes).
func (m *servingManager) GetEventRecorder(name string) recorder.EventRecorder {
	return shortNotes{m.Manager.GetEventRecorder(name)}
}

// shortNotes cuts the notes of Events to the length that the API server accepts. Notes may have
// text that users write, and client-go keeps each Event for some minutes.
type shortNotes struct{ recorder.EventRecorder }

// Eventf creates an Event.
func (r shortNotes) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	note = kube.Cut(fmt.Sprintf(note, args...), kube.MaxNote)
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", note)
}
