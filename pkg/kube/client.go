package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// Clients contains REST clients for the API groups that the node agent uses. Their scheme contains
// only the types that the agent needs. The scheme of client-go's clientset contains all types of
// Kubernetes, and uses more memory than the rest of the agent.
type Clients struct {
	Core   rest.Interface // v1
	Events rest.Interface // events.k8s.io/v1
	IPAM   rest.Interface // ipam.leasehold.dev/v1alpha1
}

// RequestTimeout is the timeout that callers set in every request except watches.
const RequestTimeout = 10 * time.Second

// NewClients returns clients with the given configuration. Each client has a separate rate limit,
// so that requests to one API group do not delay requests to another. config.QPS overrides the
// limits if it is not 0; -1 means no limit.
func NewClients(config *rest.Config) (*Clients, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{}, &corev1.Node{},
		&corev1.Namespace{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, &metav1.Status{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	metav1.AddToGroupVersion(scheme, eventsv1.SchemeGroupVersion)
	if err := ipamv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	var c Clients
	for _, part := range []struct {
		into  *rest.Interface
		group schema.GroupVersion
		media string
		qps   float32
		burst int
	}{
		{&c.Core, corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf, 10, 20},
		{&c.Events, eventsv1.SchemeGroupVersion, runtime.ContentTypeJSON, 5, 25},
		{&c.IPAM, ipamv1.GroupVersion, runtime.ContentTypeJSON, 50, 100},
	} {
		own := rest.CopyConfig(config)
		if own.QPS == 0 {
			own.QPS, own.Burst = part.qps, part.burst
		}
		own.GroupVersion, own.APIPath = &part.group, "/apis"
		if part.group.Group == "" {
			own.APIPath = "/api"
		}
		own.ContentType, own.AcceptContentTypes = part.media, part.media
		if part.media == runtime.ContentTypeProtobuf {
			own.AcceptContentTypes += "," + runtime.ContentTypeJSON
		}
		own.NegotiatedSerializer = codecs.WithoutConversion()
		own.Wrap(func(next http.RoundTripper) http.RoundTripper { return withoutRetryAfter{next} })
		client, err := rest.RESTClientFor(own)
		if err != nil {
			return nil, fmt.Errorf("API %s: %w", part.group, err)
		}
		*part.into = client
	}
	return &c, nil
}

// withoutRetryAfter removes the header Retry-After from responses, so that client-go returns the
// error. Otherwise it repeats the request after the time in the header, up to ten times. An API
// server that has too many requests sends a second to all, and would get the requests of thousands
// of agents again in each second. The callers wait for a random time that grows.
type withoutRetryAfter struct{ next http.RoundTripper }

func (t withoutRetryAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil {
		response.Header.Del("Retry-After")
	}
	return response, err
}

// Get reads an object from the API server's watch cache if version is "0", and from etcd if it is
// "".
func Get(ctx context.Context, client rest.Interface, resource string, name Name, version string, into runtime.Object,
) error {
	options := metav1.GetOptions{ResourceVersion: version}
	return client.Get().Timeout(RequestTimeout).NamespaceIfScoped(name.Namespace, name.Namespace != "").
		Resource(resource).Name(name.Name).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(into)
}

// IsGone reports whether err says that an object does not exist. A 404 of something else, for
// example of a proxy, does not say that.
func IsGone(err error) bool { return apierrors.IsNotFound(err) && !IsNotServed(err) }

// IsNotServed reports whether err is the response of an API server that does not serve the
// resource, because its CRD is missing or being deleted.
func IsNotServed(err error) bool {
	return apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// IsTransient reports whether a retry of the request may succeed soon: the server did not respond,
// or it responded that it was unable to process the request. Errors that are not of a request, for
// example of a response that cannot be decoded, are not transient.
func IsTransient(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err)
}

// Outage distinguishes requests that fail because of the object that they are about from an API
// server that cannot be reached.
type Outage struct{ failed bool }

// Observe takes the result of a request, and reports whether others would fail as well: the API
// server has too many requests, or two in a row had no answer. An internal error may be that of a
// webhook for some objects.
func (o *Outage) Observe(err error) bool {
	failedBefore := o.failed
	o.failed = IsTransient(err) && !apierrors.IsInternalError(err)
	return o.failed && (failedBefore || apierrors.IsTooManyRequests(err))
}
