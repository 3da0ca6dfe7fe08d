package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A slowLock is a lock on an API server that takes a while for each call. A call ends without an
// answer after half of the deadline, as the manager's do.
type slowLock struct {
	resourcelock.Interface
	takes atomic.Int64 // nanoseconds
}

func (l *slowLock) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline/2)
	defer cancel()
	select {
	case <-time.After(time.Duration(l.takes.Load())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *slowLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.wait(ctx); err != nil {
		return nil, nil, err
	}
	return l.Interface.Get(ctx)
}

func (l *slowLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	return l.Interface.Create(ctx, r)
}

func (l *slowLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	return l.Interface.Update(ctx, r)
}

// TestLeaderOutlastsSlowCalls has an API server take a little more than five seconds for each call,
// and then not answer for as long as it takes to notice that a connection has died.
func TestLeaderOutlastsSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		lock := &slowLock{Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "lease"},
			Client:    client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "me"}}}
		lock.takes.Store(int64(5*time.Second + 100*time.Millisecond))
		leads, lost := false, false
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads = true },
				OnStoppedLeading: func() { lost = true },
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go elector.Run(ctx)
		defer synctest.Wait()
		defer cancel()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if !leads || lost {
			t.Errorf("with slow calls: it leads: %t, and has lost the lease: %t", leads, lost)
		}
		lock.takes.Store(int64(time.Hour))
		time.Sleep(12 * time.Second)
		synctest.Wait()
		lock.takes.Store(0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if lost {
			t.Error("it has lost the lease although calls are answered again after twelve seconds")
		}
	})
}
