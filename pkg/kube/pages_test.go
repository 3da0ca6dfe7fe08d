package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/leasehold-cni/leasehold/test/check"
)

// pages is a list that an API server sends in pages of one object.
type pages struct {
	requests []string
	fails    int // how many requests for the second page fail
}

func (p *pages) list(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	p.requests = append(p.requests, fmt.Sprintf("version %q, limit %d, %q", o.ResourceVersion, o.Limit, o.Continue))
	list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	switch {
	case o.Continue == "":
		list.Continue = "2"
		return list, meta.SetList(list, []runtime.Object{some("a", "1", "first")})
	case p.fails > 0:
		p.fails--
		return nil, apierrors.NewResourceExpired("the token has expired")
	}
	return list, meta.SetList(list, []runtime.Object{some("b", "2", "second")})
}

// An API server that does not send objects with the watch lists them in pages.
func TestListInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &pages{fails: 1}, newServer(t)
		lw := s.listWatch()
		lw.ListWithContextFunc = p.list
		go func() {
			for range s.watches {
			}
		}()
		defer close(s.watches)
		ctx, stop := context.WithCancel(t.Context())
		i, ended := newInformer(), make(chan error)
		go func() { ended <- i.Run(ctx, lw, "objects") }()
		time.Sleep(time.Minute) // in a bubble of synctest: for the second attempt
		stop()
		<-ended
		views := i.List()
		slices.Sort(views)
		first, second := `version "", limit 50, ""`, `version "", limit 50, "2"`
		check.Slices(t, p.requests, []string{first, second, first, second})
		check.Slices(t, views, []string{"first", "second"})
	})
}
