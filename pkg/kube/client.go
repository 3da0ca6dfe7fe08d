package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
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
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.ConfigMap{}, &metav1.Status{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	metav1.AddToGroupVersion(scheme, eventsv1.SchemeGroupVersion)
	if err := ipamv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	var c Clients
	for _, part := range []struct {
		into  *rest.Interface
		group schema.GroupVersion
		qps   float32
		burst int
	}{
		{&c.Core, corev1.SchemeGroupVersion, 10, 20},
		{&c.Events, eventsv1.SchemeGroupVersion, 5, 25},
		{&c.IPAM, ipamv1.GroupVersion, 50, 100},
	} {
		own := rest.CopyConfig(config)
		if own.QPS == 0 {
			own.QPS, own.Burst = part.qps, part.burst
		}
		own.Wrap(func(next http.RoundTripper) http.RoundTripper { return withoutRetryAfter{next} })
		http, err := rest.HTTPClientFor(own)
		if err == nil {
			*part.into, err = NewClient(own, http, scheme, part.group)
		}
		if err != nil {
			return nil, fmt.Errorf("API %s: %w", part.group, err)
		}
	}
	return &c, nil
}

// NewClient returns a client for the types of a group and version that are in the scheme. It
// decodes an object that cannot be decoded as an *Undecodable, unless it is to decode into an
// object.
func NewClient(config *rest.Config, http *http.Client, scheme *runtime.Scheme, group schema.GroupVersion) (
	rest.Interface, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath, own.ContentType = &group, "/apis", runtime.ContentTypeJSON
	if group.Group == "" { // not all groups have protobuf, and only this one has large objects
		own.APIPath, own.ContentType = "/api", runtime.ContentTypeProtobuf
		own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	own.NegotiatedSerializer = tolerant{serializer.NewCodecFactory(scheme).WithoutConversion()}
	return rest.RESTClientForConfigAndClient(own, http)
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

// An Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// Get reads an object from the API server's watch cache if version is "0", and from etcd if it is
// "".
func Get(ctx context.Context, client rest.Interface, resource string, name Name, version string, into Object) error {
	return Into(getRequest(client, resource, name, version).Do(ctx), into)
}

func getRequest(client rest.Interface, resource string, name Name, version string) *rest.Request {
	options := metav1.GetOptions{ResourceVersion: version}
	return client.Get().Timeout(RequestTimeout).NamespaceIfScoped(name.Namespace, name.Namespace != "").
		Resource(resource).Name(name.Name).VersionedParams(&options, metav1.ParameterCodec)
}

// Into decodes the result of a request. If the request was successful, and its response cannot be
// decoded, the error wraps ErrUndecodable, and only the metadata that identifies the object is set.
func Into(result rest.Result, into Object) error {
	if err := result.Error(); err != nil {
		return err
	}
	err := result.Into(into)
	if err == nil {
		return nil
	}
	reflect.ValueOf(into).Elem().SetZero()
	data, _ := result.Raw()
	m := identityIn(data)
	into.SetNamespace(m.Namespace)
	into.SetName(m.Name)
	into.SetUID(m.UID)
	into.SetResourceVersion(m.ResourceVersion)
	return fmt.Errorf("%w: %v", ErrUndecodable, err)
}

// GetUID reads the UID of an object, as Get does. It decodes no other part of the object.
func GetUID(ctx context.Context, client rest.Interface, resource string, name Name, version string) (string, error) {
	result := getRequest(client, resource, name, version).SetHeader("Accept", "application/json;"+
		"as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").Do(ctx)
	if err := result.Error(); err != nil { // Raw would return this error without the decoded Status
		return "", err
	}
	data, err := result.Raw()
	uid := string(identityIn(data).UID)
	if err == nil && uid == "" {
		err = fmt.Errorf("%w: it has no UID", ErrUndecodable)
	}
	return uid, err
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
	var request *url.Error
	return errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.ErrUnexpectedEOF) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
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
