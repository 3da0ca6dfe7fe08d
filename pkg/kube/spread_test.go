package kube

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// outage is an API server that many informers watch, and that can be away.
type outage struct {
	mu       sync.Mutex
	isAway   bool
	watches  map[watch.Interface]bool
	began    time.Time
	requests []time.Duration // since began, of those that it has received
	lists    int             // of them
}

func (s *outage) receive(begin func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isAway {
		return fmt.Errorf("dialing: %w", syscall.ECONNREFUSED)
	}
	s.requests = append(s.requests, time.Since(s.began))
	begin()
	return nil
}

func (s *outage) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			return list, s.receive(func() { s.lists++ })
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(10, false)
			err := s.receive(func() { s.watches[w] = true })
			if err != nil {
				return nil, err
			}
			time.AfterFunc(time.Duration(*o.TimeoutSeconds)*time.Second, func() { s.end(w) })
			return w, nil
		},
	}
}

func (s *outage) end(w watch.Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[w] {
		delete(s.watches, w)
		w.(*watch.FakeWatcher).Stop()
	}
}

// setAway ends all watches, and refuses requests while it is away.
func (s *outage) setAway(is bool) {
	s.mu.Lock()
	s.isAway, s.began, s.requests = is, time.Now(), nil
	var all []watch.Interface
	for w := range s.watches {
		all = append(all, w)
	}
	s.mu.Unlock()
	for _, w := range all {
		s.end(w)
	}
}

// peak returns the largest number of requests in a second.
func (s *outage) peak() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	perSecond := map[int]int{}
	for _, at := range s.requests {
		perSecond[int(at/time.Second)]++
		most = max(most, perSecond[int(at/time.Second)])
	}
	return most
}

// After an outage, 5,000 agents with three informers each, with the periods of retention, publish
// and retention, make at most 250 requests in a second, and few in all (docs/decisions.md, "Cost
// that does not grow with the nodes").
func TestRequestsOf5000AgentsAfterAnOutage(t *testing.T) {
	const agents = 5000
	periods := []time.Duration{3 * time.Minute, 5 * time.Minute, 10 * time.Minute}
	synctest.Test(t, func(t *testing.T) {
		s := &outage{watches: map[watch.Interface]bool{}}
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var done sync.WaitGroup
		for range agents {
			for _, period := range periods {
				i := &NodeInformer[string]{newInformer(), s.listWatch(), "objects", period}
				done.Go(func() { _ = i.Run(ctx) })
			}
		}
		time.Sleep(time.Minute)
		s.setAway(true)
		time.Sleep(time.Minute)
		s.setAway(false)
		time.Sleep(periods[2] * 11 / 10)
		s.mu.Lock()
		watches, requests := len(s.watches), len(s.requests)
		s.mu.Unlock()
		most, all := s.peak(), agents*len(periods)
		t.Logf("%d requests in a second", most)
		if most > 250 || watches != all || requests > 2*all {
			t.Errorf("%d requests in a second, %d in all, %d watches; want at most 250, %d, and %d", most, requests,
				watches, 2*all, all)
		}
		stop()
		done.Wait()
	})
}

// An informer that has never received a list tries again within seconds, and ever less often.
func TestInformerThatBeginsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Time
		lw := &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				tries = append(tries, time.Now())
				return nil, apierrors.NewServiceUnavailable("starting")
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, apierrors.NewServiceUnavailable("starting")
			},
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		_ = (&NodeInformer[string]{newInformer(), lw, "objects", time.Minute}).Run(ctx)
		if first := tries[1].Sub(tries[0]); first > 2*time.Second || len(tries) < 20 || len(tries) > 50 {
			t.Errorf("the second try after %s, %d tries in ten minutes", first, len(tries))
		}
	})
}
