package scenarios

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// managers scales the manager until the scenario ends, and waits until all replicas are Ready.
func (t *Test) managers(replicas string) {
	scale := func(replicas string) {
		t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, "--replicas="+replicas)
		t.Kubectl("--namespace="+cluster.System, "rollout", "status", "deployment", cluster.Manager, "--timeout=5m")
	}
	t.Cleanup(func() { scale("2") })
	scale(replicas)
}

// maxForged is how many forged reviews are sent at a time, at most: a manager that has no processor
// must not cause ever more connections, which would take it from the API server.
const maxForged = 256

// forgedReviews sends up to 200 reviews a second to the managers, from the address of the API
// server, until stop is called or the scenario ends. They are about pods like the given ones, which
// nobody creates. stop returns how many were answered.
func (t *Test) forgedReviews(pods Pods) (stop func() (answered int)) {
	ctx, cancel := context.WithCancel(t.Ctx)
	client := &http.Client{Transport: &http.Transport{DialContext: dialFrom(t.Cluster.PID(cluster.Control)),
		MaxIdleConnsPerHost: maxForged, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	send := func(url string, review []byte) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(review))
		if err != nil {
			return false
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		return err == nil && bytes.Contains(answer, []byte(`"allowed":true`))
	}
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
				if send(urls[i%len(urls)], forged[i%len(forged)]) {
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
		like := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{GenerateName: p.GenerateName, Labels: p.Labels,
				OwnerReferences: p.OwnerReferences,
				Annotations:     map[string]string{Window: p.Annotations[Window], reserveAs: p.Annotations[reserveAs]}},
			Spec: corev1.PodSpec{SchedulerName: p.Spec.SchedulerName, Containers: p.Spec.Containers}}
		again, bare := *like.DeepCopy(), *like.DeepCopy()
		again.Annotations[pinnedNode] = p.Spec.NodeName
		bare.OwnerReferences = nil
		for _, pod := range []corev1.Pod{like, again, bare} {
			raw, err := json.Marshal(pod)
			t.Must(err)
			review, err := json.Marshal(admissionv1.AdmissionReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
				Request: &admissionv1.AdmissionRequest{UID: uuid.NewUUID(), Namespace: p.Namespace,
					Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}}})
			t.Must(err)
			reviews = append(reviews, review)
		}
	}
	return reviews
}

// dialFrom returns a function that connects from the network namespace of a process.
func dialFrom(pid int) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		done := make(chan bool)
		go func() {
			defer close(done)
			goruntime.LockOSThread() // it is not unlocked: the thread ends with the goroutine
			var ns *os.File
			if ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
				return
			}
			defer ns.Close()
			if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			}
		}()
		<-done
		return conn, err
	}
}
