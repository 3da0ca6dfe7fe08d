package scenarios

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// maxForged is how many forged reviews are sent at a time, at most: a manager that has no processor
// must not cause ever more connections, which would take it from the API server.
const maxForged = 256

// forgedReviews sends up to 200 reviews a second to the managers, from the address of the API
// server, until stop is called or the scenario ends. They are about pods like the given ones, which
// nobody creates. stop returns how many were answered.
func (t *Test) forgedReviews(pods Pods) (stop func() (answered int)) {
	ctx, cancel := context.WithCancel(t.Ctx)
	fromControl := fmt.Sprintf("/proc/%d/ns/net", t.Cluster.PID(cluster.Control))
	client := &http.Client{Transport: &http.Transport{DialContext: inspect.DialIn(fromControl),
		MaxIdleConnsPerHost: maxForged, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var urls []string
	for _, m := range t.Managers() {
		urls = append(urls, fmt.Sprintf("https://%s/pin", net.JoinHostPort(m.Status.PodIP, "9443")))
	}
	forged := t.forge(pods)
	var all sync.WaitGroup
	var answered atomic.Int64
	busy := make(chan bool, maxForged)
	all.Go(func() {
		tick := time.NewTicker(time.Second / 200)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			busy <- true
			all.Go(func() {
				defer func() { <-busy }()
				if _, err := inspect.Ask(ctx, client, urls[i%len(urls)], forged[i%len(forged)]); err == nil {
					answered.Add(1)
				}
			})
			<-tick.C
		}
	})
	stop = func() int {
		cancel()
		all.Wait()
		client.CloseIdleConnections()
		return int(answered.Load())
	}
	t.Cleanup(func() { stop() })
	return stop
}

// forge returns reviews of pods like the given ones: as their controllers create them, as in a
// second call of the webhook, and without a controller.
func (t *Test) forge(pods Pods) (reviews [][]byte) {
	for _, p := range pods {
		like := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: p.GenerateName, Labels: p.Labels,
				OwnerReferences: p.OwnerReferences,
				Annotations:     map[string]string{Window: p.Annotations[Window], reserveAs: p.Annotations[reserveAs]}},
			Spec: corev1.PodSpec{SchedulerName: p.Spec.SchedulerName, Containers: p.Spec.Containers}}
		again, bare := *like.DeepCopy(), *like.DeepCopy()
		again.Annotations[pinnedNode] = p.Spec.NodeName
		bare.OwnerReferences = nil
		for _, pod := range []corev1.Pod{like, again, bare} {
			review, err := inspect.Review(&pod, false)
			t.Must(err)
			reviews = append(reviews, review)
		}
	}
	return reviews
}
