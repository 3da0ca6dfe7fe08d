package events

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
	"github.com/leasehold-cni/leasehold/pkg/signal"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	pace  = 250 * time.Millisecond
	retry = 2 * time.Second
	// told is how old an entry may be that is told at the start: a shorter time than events live in the API, which
	// knows by their names those that it has.
	told = 10 * time.Minute
	// maxWaiting bounds what waits for the API server; the oldest go.
	maxWaiting = 1024
)

// Events is the task.
type Events struct {
	Service *ipam.Service
	Node    string
	Client  rest.Interface
	Pods    *nodepods.Pods
	Log     *slog.Logger

	reader  Reader
	cursor  uint64
	started bool

	mu      sync.Mutex
	waiting []Notice
	wrong   map[live.Name]string // what was told of a pod's annotation
	news    signal.Signal
}

// Run tells what happens until ctx is done. changes brings a word when the store has changed.
func (e *Events) Run(ctx context.Context, changes <-chan struct{}) error {
	return live.Loop(ctx, pace, live.Any(ctx, changes, e.news.Subscribe()), e.pass)
}

// Invalid tells of a pod's annotation, once for each word.
func (e *Events) Invalid(p nodepods.Pod, problem error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if word, known := e.wrong[p.Name]; known && word == p.Asked+"\x00"+string(p.ObjectUID) {
		return
	}
	if e.wrong == nil || len(e.wrong) > 4*maxWaiting {
		e.wrong = map[live.Name]string{}
	}
	e.wrong[p.Name] = p.Asked + "\x00" + string(p.ObjectUID)
	e.queue(Notice{Namespace: p.Namespace, Pod: p.Name.Name, UID: p.UID, Reason: InvalidReservation, Warning: true,
		Text: problem.Error() + "; what was asked for before stands", Time: time.Now(), About: p.Asked})
	e.news.Send()
}

func (e *Events) queue(n ...Notice) {
	e.waiting = append(e.waiting, n...)
	if more := len(e.waiting) - maxWaiting; more > 0 {
		e.waiting = append([]Notice(nil), e.waiting[more:]...)
	}
}

func (e *Events) pass(ctx context.Context) (again time.Duration) {
	pods, _ := e.Pods.Rows()
	if err := e.read(ctx, pods); err != nil && !store.IsEmpty(err) {
		e.Log.Warn("the journal cannot be read", "error", err)
		again = retry
	}
	for {
		n, ok := e.next()
		if !ok {
			return again
		}
		err := post(ctx, e.Client, Event(n, objectUID(pods, n), e.Node))
		switch {
		case err == nil:
		case isFinal(err):
			e.Log.Warn("an event was refused", "reason", n.Reason, "pod", n.Namespace+"/"+n.Pod, "error", err)
		default:
			e.putBack(n)
			return retry
		}
	}
}

func (e *Events) next() (Notice, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return Notice{}, false
	}
	n := e.waiting[0]
	e.waiting = e.waiting[1:]
	return n, true
}

func (e *Events) putBack(n Notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append([]Notice{n}, e.waiting...)
}

// isFinal tells whether the server's answer to the same event would be the same again.
func isFinal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// read makes notices of what is new in the journal. At the start it reads all of it, to know what came before.
func (e *Events) read(ctx context.Context, pods map[live.Name]nodepods.Pod) error {
	var entries []store.Entry
	cursor, err := e.Service.Journal(ctx, e.cursor, func(_ uint64, n store.Entry) { entries = append(entries, n) })
	if err != nil {
		return err
	}
	e.cursor = cursor
	notices := e.reader.Read(entries, func(namespace, name, uid string) bool {
		p, here := pods[live.Name{Namespace: namespace, Name: name}]
		w, err := windows.Decide(p)
		return here && p.UID == uid && err == nil && w.Window > 0
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range notices {
		if e.started || time.Since(n.Time) < told {
			e.queue(n)
		}
	}
	e.started = true
	return nil
}

// objectUID is the UID of the pod's object: another than the runtime's for a static pod.
func objectUID(pods map[live.Name]nodepods.Pod, n Notice) types.UID {
	if p, here := pods[live.Name{Namespace: n.Namespace, Name: n.Pod}]; here && p.UID == n.UID {
		return p.ObjectUID
	}
	return types.UID(n.UID)
}
