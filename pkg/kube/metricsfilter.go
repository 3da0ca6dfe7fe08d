package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
)

const (
	// allowedFor and refusedFor are how long a result of the reviews is used again.
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	// rememberedFor is how long a client that was allowed once is reviewed before strangers.
	rememberedFor = time.Hour
	// maxResults is the largest number of results of each kind that are kept.
	maxResults = 256
	// maxReviews is the largest number of requests that wait for reviews at a time. Further
	// requests get the response 503, unless the result for their token is known.
	maxReviews = 4
	// maxToken is the length of the longest token that is sent to the API server, in bytes.
	maxToken = 16 << 10
	// logInterval is the least time between two log lines about reviews that failed.
	logInterval = time.Minute
)

// MetricsFilter restricts the requests to a handler of metrics to clients that the API server
// authenticates and authorizes, by a TokenReview and a SubjectAccessReview. The server must use
// TLS, because the clients send bearer tokens. A MetricsFilter is safe for concurrent use.
//
// The library for that, k8s.io/apiserver, would make the manager 29 MB larger, and the agent as
// well (docs/decisions.md, "Metrics: two reviews, without k8s.io/apiserver").
type MetricsFilter struct {
	clients *Clients
	log     *slog.Logger
	now     func() time.Time
	reviews chan struct{} // contains a value for each request that waits for reviews
	// allowed and refused have the results of the reviews: since when a question is allowed, and
	// with which HTTP status another one is refused. Refusals are apart, so that the requests of
	// strangers do not make those forgotten that were allowed.
	allowed, refused *cache.LRUExpireCache

	mu     sync.Mutex
	logged time.Time // when a failure was logged last
}

// Now implements cache.Clock.
func (f *MetricsFilter) Now() time.Time { return f.now() }

// question is what the reviews decide.
type question struct {
	token  [sha256.Size]byte
	method string
	path   string
}

// NewMetricsFilter returns a filter. The account of the clients must be allowed to create
// tokenreviews and subjectaccessreviews, as the ClusterRole system:auth-delegator allows.
func NewMetricsFilter(clients *Clients, log *slog.Logger) *MetricsFilter {
	f := &MetricsFilter{clients: clients, log: log, now: time.Now, reviews: make(chan struct{}, maxReviews)}
	f.allowed = cache.NewLRUExpireCacheWithClock(maxResults, f)
	f.refused = cache.NewLRUExpireCacheWithClock(maxResults, f)
	return f
}

// Handler returns a handler that serves a request by next if the API server knows the request's
// bearer token and allows its user the method of the request, in lower case, on the path. Other
// requests get the response 401 or 403, and 503 if the API server cannot be asked.
func (f *MetricsFilter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" || len(token) > maxToken {
			refuse(w, http.StatusUnauthorized)
			return
		}
		switch status, err := f.status(r.Context(), token, r.Method, r.URL.Path); {
		case err != nil:
			f.logFailure(err)
			refuse(w, http.StatusServiceUnavailable)
		case status == http.StatusOK:
			next.ServeHTTP(w, r)
		default:
			refuse(w, status)
		}
	})
}

func refuse(w http.ResponseWriter, status int) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, http.StatusText(status), status)
}

// status returns the status of a request, from the kept results or by reviews.
func (f *MetricsFilter) status(ctx context.Context, token, method, path string) (int, error) {
	q := question{sha256.Sum256([]byte(token)), method, path}
	if status, found := f.refused.Get(q); found {
		return status.(int), nil
	}
	since, wasAllowed := f.allowed.Get(q)
	if wasAllowed && f.now().Sub(since.(time.Time)) < allowedFor {
		return http.StatusOK, nil
	}
	if !wasAllowed { // requests with unknown tokens must not delay a client that was allowed
		select {
		case f.reviews <- struct{}{}:
			defer func() { <-f.reviews }()
		default:
			return http.StatusServiceUnavailable, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	status, err := f.review(ctx, token, method, path)
	switch {
	case err != nil:
	case status == http.StatusOK:
		f.allowed.Add(q, f.now(), rememberedFor)
	default:
		f.allowed.Remove(q)
		f.refused.Add(q, status, refusedFor)
	}
	return status, err
}

// review asks the API server whose token it is, and what the user may do.
func (f *MetricsFilter) review(ctx context.Context, token, method, path string) (status int, err error) {
	t := authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := create(ctx, f.clients.Authentication, "tokenreviews", &t); err != nil {
		return 0, err
	}
	if !t.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := t.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	s := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user.Username,
		UID: user.UID, Groups: user.Groups, Extra: extra, NonResourceAttributes: &authorizationv1.NonResourceAttributes{
			Path: path, Verb: strings.ToLower(method)}}}
	if err := create(ctx, f.clients.Authorization, "subjectaccessreviews", &s); err != nil {
		return 0, err
	}
	if !s.Status.Allowed || s.Status.Denied {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// reviewed is a review: its creation fills the status.
type reviewed interface {
	*authenticationv1.TokenReview | *authorizationv1.SubjectAccessReview
	runtime.Object
}

func create[T reviewed](ctx context.Context, client rest.Interface, resource string, review T) error {
	if err := client.Post().Resource(resource).Body(review).Do(ctx).Into(review); err != nil {
		return fmt.Errorf("creating %s: %w", resource, err)
	}
	return nil
}

// logFailure logs that reviews have failed, at most once in logInterval.
func (f *MetricsFilter) logFailure(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now().Sub(f.logged) >= logInterval {
		f.log.Warn("authenticating a scrape failed", "error", err)
		f.logged = f.now()
	}
}
