package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A request that the API server rejects because it has too many is not repeated by client-go.
func TestRejectedRequestIsNotRepeated(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL})
	must.Succeed(t, err)
	err = clients.Core.Get().Resource("nodes").Name("a").Do(t.Context()).Error()
	if !apierrors.IsTooManyRequests(err) || requests.Load() != 1 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}

func TestIsTransient(t *testing.T) {
	for code, want := range map[int]bool{500: true, 503: true, 429: true, 504: true, 403: false, 404: false, 409: false,
		422: false} {
		err := apierrors.NewGenericServerResponse(code, "PATCH", schema.GroupResource{}, "n", "", 0, true)
		check.Equal(t, IsTransient(err), want, code)
	}
	if !IsTransient(fmt.Errorf("reading: %w", errUnreachable)) || !IsTransient(apierrors.NewTimeoutError("slow", 1)) {
		t.Error("no response, or a timeout, is not transient")
	}
	for _, err := range []error{nil, errors.New("parsing time"), fmt.Errorf("the store: %w", syscall.EAGAIN)} {
		if IsTransient(err) {
			t.Errorf("%v is not of a request, and transient", err)
		}
	}
}

// An API server without the resource does not say that an object does not exist.
func TestIsGone(t *testing.T) {
	response := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "GET", schema.GroupResource{}, "n", "", 0, true)
	}
	noObject := apierrors.NewNotFound(schema.GroupResource{}, "n")
	for name, tt := range map[string]struct {
		err              error
		gone, isUnserved bool
	}{
		"no such object":   {noObject, true, false},
		"no such resource": {response(404), false, true},
		"no such verb":     {response(405), false, true},
		"no right":         {response(403), false, false},
		"no answer":        {errUnreachable, false, false},
		"no error":         {nil, false, false},
		"wrapped":          {fmt.Errorf("reading: %w", noObject), true, false},
	} {
		if gone, unserved := IsGone(tt.err), IsNotServed(tt.err); gone != tt.gone || unserved != tt.isUnserved {
			t.Errorf("%s: gone %t, want %t; not served %t, want %t", name, gone, tt.gone, unserved, tt.isUnserved)
		}
	}
}

var errUnreachable = &url.Error{Op: "Get", URL: "https://10.96.0.1", Err: syscall.ECONNREFUSED}

// One request that fails says nothing about others; two in a row without an answer do.
func TestOutage(t *testing.T) {
	response := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "PATCH", schema.GroupResource{}, "n", "", 0, true)
	}
	var o Outage
	for i, c := range []struct {
		err  error
		away bool
	}{
		{errUnreachable, false}, {nil, false}, {response(503), false}, {response(403), false}, {errUnreachable, false},
		{errors.New("the store is busy"), false}, {response(504), false}, {errUnreachable, true}, {response(503), true},
		{response(500), false}, {response(500), false}, {response(429), true},
	} {
		check.Equal(t, o.Observe(c.err), c.away, i, c.err, "away")
	}
}

// Of an object that cannot be decoded, Get sets what identifies it, and GetUID reads the UID.
func TestGetOfAnUndecodableObject(t *testing.T) {
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL})
	must.Succeed(t, err)
	body = `{"kind":"IPReservation","apiVersion":"ipam.leasehold.dev/v1alpha1","metadata":{"namespace":"n","name":"a",
		"uid":"u","resourceVersion":"7","labels":{"a":"b"}},"status":{"id":"1","heldUntil":"2026-11-29t08:00:00z"}}`
	name, got := Name{Namespace: "n", Name: "a"}, &ipamv1.IPReservation{}
	err = Get(t.Context(), clients.IPAM, "ipreservations", name, "", got)
	want := &ipamv1.IPReservation{}
	want.Namespace, want.Name, want.UID, want.ResourceVersion = "n", "a", "u", "7"
	if !errors.Is(err, ErrUndecodable) || IsTransient(err) || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %+v, want %+v", err, got, want)
	}
	if uid, err := GetUID(t.Context(), clients.Core, "nodes", Name{Name: "a"}, ""); uid != "u" || err != nil {
		t.Errorf("the UID is %q, %v", uid, err)
	}
	for _, body = range []string{`{"metadata":{"uid":7}}`, `{}`, `x`} {
		if uid, err := GetUID(t.Context(), clients.Core, "nodes", Name{Name: "a"}, ""); err == nil || IsGone(err) {
			t.Errorf("%s: UID %q, %v", body, uid, err)
		}
	}
}

// A response that is no list is not an empty one, and neither is a part of a list.
func TestResponseThatIsNoList(t *testing.T) {
	item := func() runtime.Object { return &corev1.Pod{} }
	list, err := (&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}).Marshal()
	must.Succeed(t, err)
	message, err := (&runtime.Unknown{Raw: list}).Marshal()
	must.Succeed(t, err)
	inJSON := `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}`
	for _, whole := range []string{inJSON, string(protobufPrefix) + string(message)} {
		for cut := range len(whole) + 1 {
			var names []string
			meta, err := eachItem(strings.NewReader(whole[:cut]), item, func(o runtime.Object) error {
				names = append(names, o.(metav1.Object).GetName())
				return nil
			})
			isRead := len(names) == 1 && names[0] == "a" && meta.ResourceVersion == "7"
			if err == nil && !isRead || err != nil && cut == len(whole) {
				t.Errorf("%q: %q of version %q, %v", whole[:cut], names, meta.ResourceVersion, err)
			}
		}
	}
	for _, body := range []string{`{}`, `[]`, `7`, `null`, `{"items":7}`, `{"kind":"Status"}`, `<html>`,
		`{"items":[{}],"metadata":7}`} {
		if _, err := eachItem(strings.NewReader(body), item, func(runtime.Object) error { return nil }); err == nil {
			t.Errorf("%s is a list", body)
		}
	}
	for _, body := range []string{`{"items":null}`, `{"items":[]}`} {
		_, err := eachItem(strings.NewReader(body), item, func(runtime.Object) error { return nil })
		must.Succeed(t, err, body)
	}
}
