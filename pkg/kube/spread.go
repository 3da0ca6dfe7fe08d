package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// errEnded is returned instead of a new watch if the last one ended before its time.
var errEnded = errors.New("the last watch ended before its time")

// tolerance is how long before its time a watch may end that the API server ends in time.
const tolerance = 5 * time.Second

// minWatch is the shortest time after which the API server ends a watch. The longest is twice that.
// With client-go's 5 minutes, 5,000 programs with three watches begin 33 of them in each second.
const minWatch = 30 * time.Minute

// withoutWatchList is a ListWatch with which a reflector lists objects before it watches them.
type withoutWatchList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported reports whether a reflector must list objects first, always true.
func (withoutWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// RunSpread is Run for a program that runs on every node and selects the objects of its node. If a
// watch ends before its time, RunSpread waits for a random part of the period. If the next try is
// refused, it waits for a quarter to a half of the period, and from then on for half of it to all
// of it. If many programs lose the API server at the same moment, their requests are therefore
// spread over the period. All of them watch again a period after the begin of an outage of at most
// a quarter of the period, and a period after the end of a longer one. Each program makes two
// requests then, a list and a watch. A watch that sends the list itself would be one, but for it
// the API server copies and sorts all objects of the cluster, where it has an index for a list.
// Until RunSpread has received a list, it waits for a second at first, and for at most half the
// period.
func (i *Informer[V]) RunSpread(ctx context.Context, lw *cache.ListWatch, what string, period time.Duration) error {
	spread := *lw
	end := time.Time{} // of the last watch, zero if there is none
	spread.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		if time.Now().Before(end) {
			return nil, errEnded
		}
		w, err := lw.WatchFuncWithContext(ctx, o)
		switch {
		case utilnet.IsConnectionRefused(err), apierrors.IsTooManyRequests(err):
			return nil, errors.New(err.Error()) // the reflector repeats requests with these errors itself
		case err == nil:
			i.isOpen.Store(true)
			end = time.Now().Add(time.Duration(*o.TimeoutSeconds)*time.Second - tolerance)
		}
		return w, err
	}
	reflector := cache.NewReflectorWithOptions(withoutWatchList{&spread}, i.expected, i,
		cache.ReflectorOptions{Name: what, MinWatchTimeout: minWatch})
	starting := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 10, Cap: period / 4}
	again := wait.Backoff{Duration: period / 4, Factor: 2, Jitter: 1, Steps: 2, Cap: period / 2}
	for refused := again; ; {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("watch failed", "reflector", what, "error", err)
		}
		end = time.Time{}
		var pause time.Duration
		switch {
		case i.isOpen.Swap(false):
			pause, refused = rand.N(period), again
		case i.HasSynced():
			pause = refused.Step()
		default:
			pause = starting.Step()
		}
		if !notify.Wait(ctx, nil, pause) {
			return ctx.Err()
		}
	}
}

// Connected waits until RunSpread has a watch, so that the API server is available. It reports
// false if ctx is done before. Tasks that read something once in each period call it first: while
// an API server starts, it would let their requests wait, and then receive all of them at the same
// moment.
func (i *Informer[V]) Connected(ctx context.Context) bool {
	for !i.isOpen.Load() {
		if !notify.Wait(ctx, nil, connectedInterval) {
			return false
		}
	}
	return true
}

// connectedInterval is how often Connected checks whether there is a watch.
const connectedInterval = time.Second
