package retention

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// limitsPeriod is the time between two reads of the limits.
const limitsPeriod = time.Minute

// Limits is the task that copies the limits of namespaces (policy.Limits) from a ConfigMap to the
// store, from which the plugin reads them. If the ConfigMap does not exist, there are no limits. If
// it cannot be read or is invalid, the previous limits stay in effect.
type Limits struct {
	Service   *maintain.Service
	Core      rest.Interface
	Namespace string // of the ConfigMap
	Name      string
	// Connected waits until the API server is available (informer.Connected).
	Connected func(context.Context) bool
	Log       *slog.Logger
}

// Run copies the limits about once in each limitsPeriod until ctx is done. It returns ctx.Err().
func (l *Limits) Run(ctx context.Context) error {
	return informer.Repeat(ctx, limitsPeriod, l.Connected, l.pass)
}

func (l *Limits) pass(ctx context.Context) {
	limits, err := l.read(ctx)
	if err != nil {
		l.Log.Debug("reading the limits of namespaces failed", "error", err)
		return
	}
	if err := limits.Validate(); err != nil {
		l.Log.Warn("limits of namespaces are not valid, the former ones stay in effect", "configMap",
			l.Namespace+"/"+l.Name, "error", err)
		return
	}
	if err := l.Service.SetLimits(ctx, limits); err != nil && !store.IsEmpty(err) {
		l.Log.Warn("storing the limits of namespaces failed", "error", err)
	}
}

// read reads the ConfigMap from the API server's watch cache. It returns nil if the ConfigMap does
// not exist.
func (l *Limits) read(ctx context.Context) (policy.Limits, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	object := &corev1.ConfigMap{}
	options := metav1.GetOptions{ResourceVersion: "0"}
	err := l.Core.Get().Namespace(l.Namespace).Resource("configmaps").Name(l.Name).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(object)
	// A 404 with this cause does not come from the API server, but from a proxy, for example.
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	return object.Data, err
}
