package kube

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// api answers reviews: each token is that of the user with the same name, in the group scrapers,
// but the token "unknown", which is nobody's. The user prometheus may get /metrics.
type api struct {
	t        *testing.T
	requests atomic.Int32
	status   atomic.Int32  // of each response instead, if not 0
	release  chan struct{} // if not nil, each response waits for a value
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.requests.Add(1)
	if a.release != nil {
		<-a.release
	}
	if status := int(a.status.Load()); status != 0 {
		w.WriteHeader(status)
		return
	}
	var reply any
	var err error
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var t authenticationv1.TokenReview
		err = json.NewDecoder(r.Body).Decode(&t)
		t.Status.Authenticated = t.Spec.Token != "unknown"
		t.Status.User = authenticationv1.UserInfo{Username: t.Spec.Token, UID: "1", Groups: []string{"scrapers"},
			Extra: map[string]authenticationv1.ExtraValue{"key": {"value"}}}
		reply = t
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var s authorizationv1.SubjectAccessReview
		err = json.NewDecoder(r.Body).Decode(&s)
		of := s.Spec.NonResourceAttributes
		s.Status.Allowed = s.Spec.User == "prometheus" && s.Spec.UID == "1" && of.Path == "/metrics" &&
			of.Verb == "get" && slices.Equal(s.Spec.Groups, []string{"scrapers"}) && len(s.Spec.Extra["key"]) == 1
		s.Status.Denied = of.Path == "/denied"
		reply = s
	default:
		err = fmt.Errorf("unexpected request %s", r.URL)
	}
	if err != nil {
		a.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply)
}

// fixture is a filter before a handler that responds with 200, and the time of the filter.
type fixture struct {
	*MetricsFilter
	api     *api
	handler http.Handler
	now     time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{api: &api{t: t}, now: time.Now()}
	server := httptest.NewServer(f.api)
	t.Cleanup(server.Close)
	clients, err := NewClients(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	f.MetricsFilter = NewMetricsFilter(clients, slog.New(slog.DiscardHandler))
	f.MetricsFilter.now = func() time.Time { return f.now }
	f.handler = f.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return f
}

// request returns the status of a request with an Authorization header, and how many requests the
// API server got.
func (f *fixture) request(method, path, authorization string) (status, requests int) {
	before := f.api.requests.Load()
	r := httptest.NewRequest(method, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Code, int(f.api.requests.Load() - before)
}

func TestReviews(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		method, path, authorization string
		status, requests            int
	}{
		{"GET", "/metrics", "Bearer prometheus", 200, 2},
		{"GET", "/metrics", "Bearer prometheus", 200, 0},
		{"POST", "/metrics", "Bearer prometheus", 403, 2},
		{"GET", "/other", "Bearer prometheus", 403, 2},
		{"GET", "/denied", "Bearer prometheus", 403, 2},
		{"GET", "/metrics", "Bearer somebody", 403, 2},
		{"GET", "/metrics", "Bearer somebody", 403, 0},
		{"GET", "/metrics", "Bearer unknown", 401, 1},
		{"GET", "/metrics", "", 401, 0},
		{"GET", "/metrics", "Bearer ", 401, 0},
		{"GET", "/metrics", "Basic cHJvbWV0aGV1cw==", 401, 0},
		{"GET", "/metrics", "Bearer " + strings.Repeat("x", maxToken+1), 401, 0},
	} {
		status, requests := f.request(c.method, c.path, c.authorization)
		if status != c.status || requests != c.requests {
			t.Errorf("%s %s %.20s: status %d after %d requests, want %d after %d", c.method, c.path, c.authorization,
				status, requests, c.status, c.requests)
		}
	}
}

// TestResultsExpire verifies that a permission that was withdrawn ends, and that one that was given
// begins.
func TestResultsExpire(t *testing.T) {
	for token, valid := range map[string]time.Duration{"prometheus": allowedFor, "somebody": refusedFor} {
		f := newFixture(t)
		f.request("GET", "/metrics", "Bearer "+token)
		f.now = f.now.Add(valid - 1)
		if _, requests := f.request("GET", "/metrics", "Bearer "+token); requests != 0 {
			t.Errorf("%s before %s: %d requests", token, valid, requests)
		}
		f.now = f.now.Add(2)
		if _, requests := f.request("GET", "/metrics", "Bearer "+token); requests != 2 {
			t.Errorf("%s after %s: %d requests, want 2", token, valid, requests)
		}
	}
}

// TestNoAnswerIsNoPermission verifies that nobody may scrape while the API server answers no
// review, except those for whom it has answered lately.
func TestNoAnswerIsNoPermission(t *testing.T) {
	f := newFixture(t)
	f.request("GET", "/metrics", "Bearer prometheus")
	f.api.status.Store(http.StatusForbidden)
	if status, _ := f.request("GET", "/metrics", "Bearer another"); status != http.StatusServiceUnavailable {
		t.Errorf("without an answer: status %d, want 503", status)
	}
	if status, _ := f.request("GET", "/metrics", "Bearer prometheus"); status != http.StatusOK {
		t.Errorf("with a former answer: status %d, want 200", status)
	}
	f.api.status.Store(0)
	if status, _ := f.request("GET", "/metrics", "Bearer another"); status != http.StatusForbidden {
		t.Errorf("with an answer again: status %d, want 403", status)
	}
}

// TestReviewsAreLimited has many clients with tokens of their own: few of them wait for the API
// server, and the results that are kept are limited.
func TestReviewsAreLimited(t *testing.T) {
	f := newFixture(t)
	f.api.release = make(chan struct{})
	var all sync.WaitGroup
	statuses := make(chan int, 64)
	for i := range 64 {
		all.Go(func() {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Authorization", fmt.Sprint("Bearer ", i))
			w := httptest.NewRecorder()
			f.handler.ServeHTTP(w, r)
			statuses <- w.Code
		})
	}
	for range 64 - maxReviews {
		if status := <-statuses; status != http.StatusServiceUnavailable {
			t.Errorf("status %d, want 503", status)
		}
	}
	close(f.api.release)
	all.Wait()
	for range maxReviews {
		if status := <-statuses; status != http.StatusForbidden {
			t.Errorf("status %d, want 403", status)
		}
	}
	for i := range 3 * maxResults {
		f.request("GET", "/metrics", fmt.Sprint("Bearer stranger-", i))
	}
	if n := len(f.refused.Keys()); n != maxResults {
		t.Errorf("%d results are kept, want %d", n, maxResults)
	}
}

// TestStrangersDoNotDelayAClient has clients without permission send requests without a pause, each
// with another token: a client that was allowed before is reviewed again nevertheless, and its
// result is kept.
func TestStrangersDoNotDelayAClient(t *testing.T) {
	f := newFixture(t)
	f.request("GET", "/metrics", "Bearer prometheus")
	for i := range 3 * maxResults {
		f.request("GET", "/metrics", fmt.Sprint("Bearer stranger-", i))
	}
	if _, requests := f.request("GET", "/metrics", "Bearer prometheus"); requests != 0 {
		t.Errorf("its result was forgotten: %d requests", requests)
	}
	f.now = f.now.Add(allowedFor)
	for range maxReviews {
		f.reviews <- struct{}{} // as the requests of strangers that wait
	}
	if status, requests := f.request("GET", "/metrics", "Bearer prometheus"); status != http.StatusOK || requests != 2 {
		t.Errorf("status %d after %d requests, want 200 after 2", status, requests)
	}
	if status, _ := f.request("GET", "/metrics", "Bearer somebody"); status != http.StatusServiceUnavailable {
		t.Errorf("a stranger: status %d, want 503", status)
	}
}

// TestFailuresAreLoggedOnceAMinute has many scrapes fail.
func TestFailuresAreLoggedOnceAMinute(t *testing.T) {
	f := newFixture(t)
	var log strings.Builder
	f.log = slog.New(slog.NewTextHandler(&log, nil))
	f.api.status.Store(http.StatusForbidden)
	for range 3 {
		for range 5 {
			f.request("GET", "/metrics", "Bearer prometheus")
		}
		f.now = f.now.Add(logInterval)
	}
	if n := strings.Count(log.String(), "authenticating a scrape failed"); n != 3 {
		t.Errorf("%d lines, want 3: %s", n, log.String())
	}
}

// TestSelfSigned connects twice: the certificate is made once.
func TestSelfSigned(t *testing.T) {
	listener, err := tls.Listen("tcp", "127.0.0.1:0", SelfSigned("node1"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	go server.Serve(listener)
	defer server.Close()
	var serials []string
	for range 2 {
		c, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		leaf := c.ConnectionState().PeerCertificates[0]
		if err := leaf.VerifyHostname("node1"); err != nil {
			t.Error(err)
		}
		serials = append(serials, leaf.SerialNumber.String())
		c.Close()
	}
	if serials[0] != serials[1] {
		t.Errorf("certificates %q, want one", serials)
	}
}
