package retention

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// limitsPeriod is the time over which the agents watch the limits again after an outage of the
	// API server (docs/decisions.md, "Cost that does not grow with the nodes").
	limitsPeriod = 10 * time.Minute
	// limitsInterval is how often the copy in the store is compared with the limits, because the
	// store may be new.
	limitsInterval = time.Minute
)

// Limits is the task that copies the limits of namespaces (policy.Limits) from a ConfigMap to the
// store, from which the plugin reads them. It watches the ConfigMap by its name. If the ConfigMap
// does not exist, there are no limits. If it cannot be read or is invalid, the previous limits stay
// in effect.
type Limits struct {
	Service   *maintain.Service
	Core      rest.Interface
	Namespace string // of the ConfigMap
	Name      string
	Log       *slog.Logger
}

// Run copies the limits whenever they change, until ctx is done. It returns ctx.Err().
func (l *Limits) Run(ctx context.Context) error {
	objects := informer.New(func(c *corev1.ConfigMap) policy.Limits { return c.Data }, nil)
	lw := cache.NewListWatchFromClient(l.Core, "configmaps", l.Namespace,
		fields.OneTermEqualSelector(metav1.ObjectNameField, l.Name))
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = objects.RunSpread(ctx, lw, "limits of namespaces", limitsPeriod) })
	return informer.Loop(ctx, minInterval, objects.Changes(), func(ctx context.Context) time.Duration {
		if !objects.HasSynced() {
			return 0
		}
		limits, _ := objects.Get(l.Namespace + "/" + l.Name)
		l.set(ctx, limits)
		return limitsInterval
	})
}

// set stores the limits, nil if the ConfigMap does not exist.
func (l *Limits) set(ctx context.Context, limits policy.Limits) {
	if err := limits.Validate(); err != nil {
		l.Log.Warn("limits of namespaces are not valid, the former ones stay in effect", "configMap",
			l.Namespace+"/"+l.Name, "error", err)
		return
	}
	if err := l.Service.SetLimits(ctx, limits); err != nil && !store.IsEmpty(err) {
		l.Log.Warn("storing the limits of namespaces failed", "error", err)
	}
}
