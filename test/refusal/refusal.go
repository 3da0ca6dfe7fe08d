// Package refusal tests that the setup of a feature returns every error of the manager.
package refusal

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

var errRefused = errors.New("refused")

// minRequests is less than any setup makes.
const minRequests = 3

// Each calls setup with one new manager after the other. The first manager refuses the first
// request that setup makes of it, the second one the second request, and so on, until one has
// nothing to refuse. A request is to add something, or to return the configuration or an informer,
// or to call a handler. Each fails the test if setup does not return the error at once.
func Each(t *testing.T, newManager func() manager.Manager, setup func(manager.Manager) error) {
	t.Helper()
	for refused := 0; ; refused++ {
		m := &refusing{Manager: newManager(), refused: refused}
		err := setup(m)
		if err == nil && m.requests == refused && refused > minRequests {
			return
		}
		if !errors.Is(err, errRefused) && !errors.Is(err, url.EscapeError("%")) || m.requests != refused+1 {
			t.Fatalf("request %d was refused: %v, and %d were made", refused, err, m.requests)
		}
	}
}

// refusing is a manager that refuses one of the requests.
type refusing struct {
	manager.Manager
	requests, refused int
}

func (r *refusing) next() error {
	if r.requests++; r.requests-1 == r.refused {
		return errRefused
	}
	return nil
}

func (r *refusing) Add(added manager.Runnable) error {
	return errors.Join(r.next(), r.Manager.Add(added))
}

func (r *refusing) AddReadyzCheck(name string, check healthz.Checker) error {
	return errors.Join(r.next(), r.Manager.AddReadyzCheck(name, check))
}

// GetConfig returns a configuration, which is invalid if the request is refused.
func (r *refusing) GetConfig() *rest.Config {
	c := rest.CopyConfig(r.Manager.GetConfig())
	if r.next() != nil {
		c.Host = "https://%"
	}
	return c
}

func (r *refusing) GetCache() cache.Cache { return refusingCache{r.Manager.GetCache(), r} }

type refusingCache struct {
	cache.Cache
	r *refusing
}

func (c refusingCache) GetInformer(ctx context.Context, o client.Object, options ...cache.InformerGetOption) (
	cache.Informer, error) {
	i, err := c.Cache.GetInformer(ctx, o, options...)
	return refusingInformer{i, c.r}, errors.Join(c.r.next(), err)
}

type refusingInformer struct {
	cache.Informer
	r *refusing
}

func (i refusingInformer) AddEventHandler(h toolscache.ResourceEventHandler) (
	toolscache.ResourceEventHandlerRegistration, error) {
	registered, err := i.Informer.AddEventHandler(h)
	return registered, errors.Join(i.r.next(), err)
}
