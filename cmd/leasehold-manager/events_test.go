package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// noted is a manager, and a recorder that records notes.
type noted struct {
	ctrl.Manager
	recorder.EventRecorder
	notes *[]string
}

func (n noted) GetEventRecorder(string) recorder.EventRecorder { return n }

func (n noted) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	*n.notes = append(*n.notes, fmt.Sprintf(note, args...))
}

func TestNotesAreShort(t *testing.T) {
	var notes []string
	events := (&servingManager{Manager: noted{notes: &notes}}).GetEventRecorder("test")
	for _, text := range []string{"100 % of it", strings.Repeat("ä", kube.MaxNote)} {
		events.Eventf(&corev1.Pod{}, nil, "Warning", "Reason", "Action", "why: %s", text)
	}
	if len(notes) != 2 || notes[0] != "why: 100 % of it" || len(notes[1]) > kube.MaxNote ||
		!strings.HasPrefix(notes[1], "why: äää") {
		t.Errorf("%.100q, the last one with %d bytes", notes, len(notes[len(notes)-1]))
	}
}
