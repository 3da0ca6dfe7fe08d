// Package events creates Events about what happened to the addresses of pods, and about a node on
// which leasehold is not in use.
package events

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

const (
	minInterval = 100 * time.Millisecond
	retry       = 5 * time.Second
	// maxAge is the age of the oldest journal entry that is reported after a start of the agent.
	// The API server keeps Events for longer than maxAge. The Event of an entry that was reported
	// before the start therefore still exists, and its name prevents a second one.
	maxAge = 10 * time.Minute
	// maxQueued is the largest number of Events that wait for the API server. If there are more,
	// the oldest are dropped.
	maxQueued = 1024
	// maxInstance is the largest length of reportingInstance that the API server accepts. The
	// policy for the agent's Events cuts the name of its node to the same.
	maxInstance = 128
	// maxRetry is the age after which an Event is dropped that a webhook, for example, prevents: by
	// default the API server would keep the Event for no longer.
	maxRetry = time.Hour
)

// Task is the task that creates the agent's Events. Most are about the addresses of pods, and are
// made from entries of the store's journal, in which the plugin and the agent record what happened
// to leases. The name of an Event is computed from its content, so that an entry that is read again
// after a restart of the agent creates no second Event.
type Task struct {
	*retention.Node
	Problem daemon.Problem // of the journal

	reader  reader
	cursor  uint64
	started bool
	known   kube.Reported // the names of Events that were queued, except for those about journal entries

	mu    sync.Mutex
	queue []*eventsv1.Event
	wake  daemon.Signal // sent when an Event was queued
}

// Run creates Events until ctx is done. It returns ctx.Err().
func (e *Task) Run(ctx context.Context) error {
	return daemon.Loop(ctx, minInterval, daemon.Any(e.Changes, &e.wake), e.pass)
}

// Invalid queues an Event about an invalid annotation of a pod, once for each reason. It does not
// block and is safe for concurrent use.
func (e *Task) Invalid(p retention.Pod) {
	e.queueOnce(newEvent(podRef(p.Namespace, p.Name.Name, p.ObjectUID), e.Name, "Assign", true, InvalidReservation,
		p.Invalid+"; the previous value stays in effect", time.Now(), p.UID, p.Invalid))
}

// queueOnce queues an Event, unless one of the same name was queued in the last hour. It does not
// block and is safe for concurrent use.
func (e *Task) queueOnce(event *eventsv1.Event) {
	if !e.known.First(event.Namespace + "/" + event.Name) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enqueue(event)
	e.wake.Send()
}

// enqueue appends Events to the queue, and drops the oldest ones above maxQueued. The caller holds
// e.mu.
func (e *Task) enqueue(events ...*eventsv1.Event) {
	e.queue = append(e.queue, events...)
	e.queue = slices.Clone(e.queue[max(0, len(e.queue)-maxQueued):])
}

// pass queues Events for new journal entries, and then creates the queued Events, with one attempt
// for each. Those that the API server may accept later stay queued, behind the others, and pass
// returns the time until the retry. That is random, up to twice retry, so that not all agents try
// at the same moment. If the API server seems to be away, pass ends. It drops an Event that the API
// server rejects, or does not accept for reasons of its own for maxRetry.
func (e *Task) pass(ctx context.Context) (requeueAfter time.Duration) {
	pods, _ := e.Pods.Views()
	err := e.read(ctx, pods)
	if e.Problem.Log(e.Log, slog.LevelWarn, "reading the journal", err); err != nil {
		requeueAfter = wait.Jitter(retry, 1)
	}
	e.mu.Lock()
	queue, failed := e.queue, []*eventsv1.Event(nil)
	e.queue = nil
	e.mu.Unlock()
	var outage kube.Outage
	for isAway := false; len(queue) > 0 && !isAway; {
		event := queue[0]
		queue = queue[1:]
		err := post(ctx, e.Clients.Events, event)
		isAway = outage.Observe(err)
		switch {
		case err == nil:
		case isFinal(err) || time.Since(event.EventTime.Time) > maxRetry &&
			(!kube.IsTransient(err) || apierrors.IsInternalError(err)):
			e.Log.Warn("creating an event failed", "reason", event.Reason, "about",
				event.Regarding.Namespace+"/"+event.Regarding.Name, "error", err)
		default:
			e.Log.Debug("creating an event failed, it will be tried again", "reason", event.Reason, "error", err)
			failed, requeueAfter = append(failed, event), wait.Jitter(retry, 1)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	later := e.queue
	e.queue = nil
	e.enqueue(slices.Concat(queue, failed, later)...)
	return requeueAfter
}

// isFinal reports whether an error of post is permanent: the API server rejected the request and
// would reject a retry as well.
func isFinal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// read queues Events for the journal entries that were written since its last call. The first call
// reads the whole journal, because the reader needs the former address of each pod. From that call,
// entries older than maxAge are not queued.
func (e *Task) read(ctx context.Context, pods map[kube.Name]retention.Pod) error {
	entries, cursor, err := e.Service.Journal(ctx, e.cursor)
	if err != nil {
		return err
	}
	e.cursor = cursor
	find := func(namespace, name, uid string) (p retention.Pod, found bool) {
		p, found = pods[kube.Name{Namespace: namespace, Name: name}]
		return p, found && p.UID == uid
	}
	notices := e.reader.Read(entries, func(namespace, name, uid string) bool {
		p, found := find(namespace, name, uid)
		return found && p.Window > 0
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range notices {
		if !e.started && time.Since(n.Time) >= maxAge {
			continue
		}
		uid := types.UID(n.UID)
		if p, found := find(n.Namespace, n.Pod, n.UID); found {
			uid = p.ObjectUID // of a static pod, it differs from the UID that the runtime passes
		}
		e.enqueue(newEvent(podRef(n.Namespace, n.Pod, uid), e.Name, "Assign", n.Warning, n.Reason, n.Text, n.Time,
			n.UID, n.Container, n.Time.UnixNano()))
	}
	e.started = true
	return nil
}

// controller is the value of reportingController in all Events of the agent.
const controller = "leasehold-agent"

// newEvent returns an Event of the agent on a node. Its name is the name of the object, cut if
// necessary, and a hash of its kind, the reason and the key, which has a UID and says what has
// happened: a repeated request does not create a second Event. newEvent cuts the note to
// kube.MaxNote bytes.
func newEvent(regarding corev1.ObjectReference, node, action string, isWarning bool, reason, note string,
	at time.Time, key ...any) *eventsv1.Event {
	kind := corev1.EventTypeNormal
	if isWarning {
		kind = corev1.EventTypeWarning
	}
	hash := ipamv1.Hash(fmt.Sprintf("%s\x00%s\x00%#v", regarding.Kind, reason, key))
	return &eventsv1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			// The namespace of Events about cluster-scoped objects is the default one.
			Namespace: cmp.Or(regarding.Namespace, metav1.NamespaceDefault),
			Name:      strings.TrimRight(kube.Cut(regarding.Name, 230), ".-") + "." + hash,
		},
		EventTime:           metav1.NewMicroTime(at),
		ReportingController: controller,
		ReportingInstance:   kube.Cut(node, maxInstance),
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
	isGone := kube.IsGone(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	if apierrors.IsAlreadyExists(err) || isGone {
		return nil
	}
	return err
}
