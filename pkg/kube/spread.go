package kube

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// minWatch is the shortest time after which the API server ends a watch. The longest is twice that.
// With client-go's 5 minutes, 5,000 programs with three watches begin 33 of them in each second.
const minWatch = 30 * time.Minute

// withoutWatchList is a ListWatch with which a reflector lists objects before it watches them. A
// watch that sends the list itself would be one request, but for it the API server copies and sorts
// all objects of the cluster, where it has an index for a list.
type withoutWatchList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported reports whether a reflector must list objects first, always true.
func (withoutWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// NodeInformer is an Informer of a program that runs on every node. While the API server refuses a
// request, it repeats the request after a random part of Period, and it lists again after such a
// part if a watch has failed: if many programs lose the API server at the same moment, all of them
// watch again within a Period of its return, one after the other (docs/decisions.md, "Cost that
// does not grow with the nodes"). Until it has received a list, it waits for a second at first, and
// for at most a quarter of Period.
type NodeInformer[V any] struct {
	*Informer[V]
	ListWatch *cache.ListWatch
	What      string // names the objects in log messages
	Period    time.Duration
}

// Run lists and watches objects until ctx is done. It returns ctx.Err().
func (i *NodeInformer[V]) Run(ctx context.Context) error {
	refused := wait.Backoff{Duration: i.Period / 20, Jitter: 19} // a twentieth of the period to all of it
	reflector := cache.NewReflectorWithOptions(withoutWatchList{i.ListWatch}, i.expected, i.Informer,
		cache.ReflectorOptions{Name: i.What, MinWatchTimeout: minWatch, Backoff: &refused})
	starting := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 10, Cap: i.Period / 4}
	for {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("watch failed", "reflector", i.What, "error", err)
		}
		pause := rand.N(i.Period)
		if !i.HasSynced() {
			pause = starting.Step()
		}
		if !daemon.Wait(ctx, nil, pause) {
			return ctx.Err()
		}
	}
}
