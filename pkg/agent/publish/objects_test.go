package publish

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/fakeapi"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// API servers before Kubernetes 1.31 do not support field selectors for custom resources. The test
// uses a fake one.
func TestOldServerSelectsByLabel(t *testing.T) {
	var mu sync.Mutex
	var lists []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		mu.Lock()
		lists = append(lists, q.Get("fieldSelector")+q.Get("labelSelector"))
		mu.Unlock()
		switch {
		case q.Get("fieldSelector") != "", q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusBadRequest)
			json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status: "Failure",
				Reason: metav1.StatusReasonBadRequest, Code: 400, Message: "field label not supported: spec.nodeName"})
		case q.Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			mine := ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mine",
				ResourceVersion: "1"},
				Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1"}}
			other := mine
			other.Name, other.Spec.NodeName = "other", "of-the-same-hash"
			json.NewEncoder(w).Encode(ipamv1.IPReservationList{
				TypeMeta: metav1.TypeMeta{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPReservationList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: []ipamv1.IPReservation{mine, other}})
		}
	}))
	defer server.Close()
	clients, err := informer.NewClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	o := NewObjects(clients.IPAM, "node1", slog.New(slog.DiscardHandler))
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	changes, done := o.Changes(), make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	defer func() { stop(); server.CloseClientConnections(); <-done }()
	select {
	case <-changes:
	case <-ctx.Done():
		t.Fatal("no list received")
	}
	mu.Lock()
	defer mu.Unlock()
	if want := ipamv1.LabelNodeHash + "=" + ipamv1.Hash("node1"); lists[0] != "spec.nodeName=node1" ||
		lists[len(lists)-1] != want {
		t.Errorf("selectors: %q", lists)
	}
	if r, _ := o.Get(informer.Name{Namespace: "db", Name: "mine"}.String()); r == nil || r.Spec.PodName != "db-0" {
		t.Errorf("ours: %+v", r)
	}
	if r, _ := o.Get(informer.Name{Namespace: "db", Name: "other"}.String()); r != nil && r.Spec.PodName != "" {
		t.Errorf("another node's: %+v", r)
	}
}

// TestObjectsAreWatched creates, changes and deletes an object.
func TestObjectsAreWatched(t *testing.T) {
	kind := fakeapi.Kind{GroupVersionKind: ipamv1.GroupVersion.WithKind("IPReservation"), Resource: resource,
		Namespaced: true}
	c := fakeapi.NewCluster(t, kind)
	clients, err := informer.NewClients(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	o := NewObjects(clients.IPAM, "node1", slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	defer func() { stop(); <-done }()
	c.Until("a list", func() bool { _, listed := o.Views(); return listed })
	at := informer.Name{Namespace: "db", Name: "mine"}
	has := func(pod string) func() bool {
		return func() bool {
			r, _ := o.Get(at.String())
			return pod == "" && r == nil || r != nil && r.Spec.PodName == pod
		}
	}
	for _, pod := range []string{"db-0", "db-1"} {
		c.Put(objects+at.Name, ipamv1.IPReservation{Spec: ipamv1.IPReservationSpec{PodName: pod, NodeName: "node1"}})
		c.Until("the object of "+pod, has(pod))
	}
	c.Remove(objects + at.Name)
	c.Until("it is deleted", has(""))
}
