package retention

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Limits are the limits of namespaces (policy.Limits), in a ConfigMap. If it does not exist, there
// are no limits.
type Limits = kube.NodeInformer[policy.Limits]

// NewLimits returns the Limits. They are not known until Run has received a list.
func NewLimits(core rest.Interface) *Limits {
	i := kube.NewLimits()
	return &Limits{Informer: i, What: "limits of namespaces", Period: 10 * time.Minute,
		ListWatch: i.ListWatch(core, "configmaps", kube.LimitsName.Namespace, "", kube.LimitsField)}
}

// copyLimits copies the limits to the store, from which the plugin reads them, if they are not the
// stored ones. Limits that are not known or invalid leave the stored ones in effect.
func (w *Windows) copyLimits(ctx context.Context, stored policy.Limits) error {
	if !w.Limits.HasSynced() || !w.Limits.IsComplete() {
		return nil
	}
	limits, _ := w.Limits.Get(kube.LimitsName.String())
	err := limits.Validate()
	if err != nil {
		err = fmt.Errorf("ConfigMap %s: %w; the former limits stay in effect", kube.LimitsName, err)
	}
	w.invalid.Log(w.Log, slog.LevelWarn, "applying the limits of namespaces", err)
	if err != nil || maps.Equal(limits, stored) {
		return nil
	}
	if err := w.Service.SetLimits(ctx, limits); err != nil {
		return fmt.Errorf("storing the limits of namespaces: %w", err)
	}
	return nil
}
