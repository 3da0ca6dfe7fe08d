package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// maxAge is the age of the oldest journal entry that is reported after a start of the agent.
	// The API server keeps Events for longer than maxAge. The Event of an entry that was reported
	// before the start therefore still exists, and its name prevents a second one.
	maxAge = 10 * time.Minute
	// maxQueued is the largest number of Events that wait for the API server. If there are more,
	// the oldest are dropped.
	maxQueued = 1024
	// maxFailures is the largest number of Events that the API server may reject in one pass.
	maxFailures = 10
)

// Events is the task that creates the agent's Events. Most are about the addresses of pods, and are
// made from entries of the store's journal, in which the plugin and the agent record what happened
// to leases. The name of an Event is computed from its content, so that an entry that is read again
// after a restart of the agent creates no second Event.
type Events struct {
	Service *maintain.Service
	Node    string
	Client  rest.Interface
	Pods    *Pods
	Log     *slog.Logger

	reader  reader
	cursor  uint64
	started bool
	known   kube.Reported // the names of Events that were queued, except for those about journal entries

	mu    sync.Mutex
	queue []queued
	wake  notify.Signal // sent when an Event was queued
}

// queued is an Event that is to be created.
type queued struct {
	*eventsv1.Event
	failedAt time.Time // when creating it first failed; zero before
}

// Run creates Events until ctx is done. changes receives a value when the store has changed. Run
// returns ctx.Err().
func (e *Events) Run(ctx context.Context, changes <-chan struct{}) error {
	return kube.Loop(ctx, minInterval, kube.Any(ctx, changes, e.wake.Subscribe()), e.pass)
}

// Invalid queues an Event about an invalid annotation of a pod, once for each problem. It does not
// block and is safe for concurrent use.
func (e *Events) Invalid(p Pod, problem error) {
	e.Queue(eventOf(notice{Namespace: p.Namespace, Pod: p.Name.Name, UID: p.UID, Reason: InvalidReservation,
		Warning: true, Text: problem.Error() + "; the previous value stays in effect", Time: time.Now(),
		Subject: problem.Error()}, p.ObjectUID, e.Node))
}

// Queue queues an Event, unless one of the same name was queued in the last hour. It does not block
// and is safe for concurrent use.
func (e *Events) Queue(event *eventsv1.Event) {
	if !e.known.First(event.Namespace+"/"+event.Name, time.Now()) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enqueue(queued{Event: event})
	e.wake.Send()
}

// Ending queues an Event that a hold without end will be ended because its pod has been away for
// long, once for each remaining day. rest is the time until the end. Ending does not block and is
// safe for concurrent use.
func (e *Events) Ending(l lease.Lease, rest time.Duration) {
	days := int(rest/(24*time.Hour)) + 1
	n := notice{Namespace: l.Namespace, Pod: l.Name, UID: l.UID, Reason: HoldEnding, Warning: true,
		Text: fmt.Sprintf("%s is reserved forever, but the pod has been away for long: the address is released in "+
			"less than %d days unless the pod comes back", l.Address, days),
		Time: time.Now(), Subject: fmt.Sprintf("%s %d", l.Address, days)}
	pods, _ := e.Pods.Views()
	e.Queue(eventOf(n, objectUID(pods, n), e.Node))
}

// enqueue appends Events to the queue, and drops the oldest ones above maxQueued. The caller holds
// e.mu.
func (e *Events) enqueue(q ...queued) {
	e.queue = append(e.queue, q...)
	if more := len(e.queue) - maxQueued; more > 0 {
		e.queue = append([]queued(nil), e.queue[more:]...)
	}
}

// pass queues Events for new journal entries, and then creates the queued Events. An Event that the
// API server can never accept is dropped. If the API server is unavailable, the Event stays the
// first of the queue. After any other error it becomes the last one, so that it does not delay the
// others, and is dropped after maxAge. Each Event is logged when it first fails and when it is
// dropped. pass returns the time until the retry, 0 if no retry is necessary. The time is random,
// up to twice retry, so that not all agents try at the same moment.
func (e *Events) pass(ctx context.Context) (requeueAfter time.Duration) {
	pods, _ := e.Pods.Views()
	if err := e.read(ctx, pods); err != nil && !store.IsEmpty(err) {
		e.Log.Warn("reading the journal failed", "error", err)
		requeueAfter = wait.Jitter(retry, 1)
	}
	e.mu.Lock()
	queue := e.queue
	e.queue = nil
	e.mu.Unlock()
	var failed []queued
	isDown := false
	for len(queue) > 0 && len(failed) < maxFailures && !isDown {
		q := &queue[0]
		err := post(ctx, e.Client, q.Event)
		log := e.Log.With("reason", q.Reason, "about", q.Regarding.Namespace+"/"+q.Regarding.Name, "error", err)
		isDown = err != nil && isUnavailable(err)
		isFirst := q.failedAt.IsZero()
		isOver := isFinal(err) || !isDown && !isFirst && time.Since(q.failedAt) >= maxAge
		switch {
		case err == nil:
		case isOver:
			log.Warn("creating an event failed")
		case isFirst && ctx.Err() == nil:
			log.Warn("creating an event failed, it will be tried again")
			q.failedAt = time.Now()
		}
		if isDown {
			break
		}
		if err != nil && !isOver {
			failed = append(failed, *q)
		}
		queue = queue[1:]
	}
	if isDown || len(failed) > 0 {
		requeueAfter = wait.Jitter(retry, 1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	queue, e.queue = slices.Concat(queue, e.queue, failed), nil
	e.enqueue(queue...)
	return requeueAfter
}

// isUnavailable reports whether an error of post means that no Event can be created at present: the
// API server did not respond, or asks the client to wait.
func isUnavailable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	switch status.Status().Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return apierrors.IsServerTimeout(err)
}

// isFinal reports whether an error of post is permanent: the API server rejected the request and
// would reject a retry as well.
func isFinal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// read queues Events for the journal entries that were written since its last call. The first call
// reads the whole journal, because the reader needs the former address of each pod. From that call,
// entries older than maxAge are not queued.
func (e *Events) read(ctx context.Context, pods map[kube.Name]Pod) error {
	var entries []store.Entry
	cursor, err := e.Service.Journal(ctx, e.cursor, func(_ uint64, n store.Entry) { entries = append(entries, n) })
	if err != nil {
		return err
	}
	e.cursor = cursor
	notices := e.reader.Read(entries, func(namespace, name, uid string) bool {
		p, here := pods[kube.Name{Namespace: namespace, Name: name}]
		w, err := decide(p)
		return here && p.UID == uid && err == nil && w.Window > 0
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range notices {
		if e.started || time.Since(n.Time) < maxAge {
			e.enqueue(queued{Event: eventOf(n, objectUID(pods, n), e.Node)})
		}
	}
	e.started = true
	return nil
}

// objectUID returns the UID of the notice's pod in the API. For a static pod, it differs from the
// UID that the runtime passes to plugins.
func objectUID(pods map[kube.Name]Pod, n notice) types.UID {
	if p, here := pods[kube.Name{Namespace: n.Namespace, Name: n.Pod}]; here && p.UID == n.UID {
		return p.ObjectUID
	}
	return types.UID(n.UID)
}
