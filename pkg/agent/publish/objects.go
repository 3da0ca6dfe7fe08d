package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// fieldManager is the name of the agent as a field manager of server-side apply.
const fieldManager = "leasehold-agent"

// Objects caches the node's IPReservations with an informer, and writes them.
type Objects struct {
	*informer.Informer[*ipamv1.IPReservation]
	client rest.Interface
	node   string
	log    *slog.Logger
	// byLabel is true if the API server does not support field selectors for custom resources, as
	// before Kubernetes 1.31. Then the objects are selected by the label with the hash of the
	// node's name.
	byLabel atomic.Bool
}

// NewObjects returns the Objects of a node. They are empty until Run has received a list.
func NewObjects(client rest.Interface, node string, log *slog.Logger) *Objects {
	view := func(r *ipamv1.IPReservation) *ipamv1.IPReservation {
		r.ManagedFields = nil
		if r.Spec.NodeName != node {
			// The label selects another node's object too if the hashes of their names are equal.
			r.Spec, r.Status = ipamv1.IPReservationSpec{}, ipamv1.IPReservationStatus{}
		}
		return r
	}
	return &Objects{Informer: informer.New(view, nil), client: client, node: node, log: log}
}

const resource = "ipreservations"

// Run watches the objects until ctx is done. It returns ctx.Err().
func (o *Objects) Run(ctx context.Context) error {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := &ipamv1.IPReservationList{}
			o.selectNode(&options)
			err := o.client.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
			o.detectSelector(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			o.selectNode(&options)
			w, err := o.client.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
			o.detectSelector(err)
			return w, err
		},
	}
	return o.Informer.Run(ctx, lw, "reservations of this node")
}

// selectNode restricts a list or a watch to the objects of the node.
func (o *Objects) selectNode(options *metav1.ListOptions) {
	if o.byLabel.Load() {
		options.LabelSelector = labels.Set{ipamv1.LabelNodeHash: ipamv1.Hash(o.node)}.String()
		return
	}
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.node).String()
}

// detectSelector switches to the label selector if err is the API server's rejection of the field
// selector. The informer then repeats its request with the label.
func (o *Objects) detectSelector(err error) {
	if apierrors.IsBadRequest(err) && !o.byLabel.Swap(true) {
		o.log.Info("field selector not supported, selecting reservations by label", "error", err)
	}
}

// identity contains the fields that are part of every applied configuration.
type identity struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
}

func identify(r *ipamv1.IPReservation) identity {
	i := identity{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPReservation"}
	i.Metadata.Name, i.Metadata.Namespace = r.Name, r.Namespace
	return i
}

// ApplySpec creates the object, or updates its spec and labels. It takes over fields that other
// field managers own, and does not change spec.release.
func (o *Objects) ApplySpec(ctx context.Context, want *ipamv1.IPReservation) error {
	body := struct {
		identity `json:",inline"`
		Spec     ipamv1.IPReservationSpec `json:"spec"`
	}{identify(want), want.Spec}
	body.Metadata.Labels = want.Labels
	return o.apply(ctx, want, body)
}

// ApplyStatus updates the status of an existing object.
func (o *Objects) ApplyStatus(ctx context.Context, want *ipamv1.IPReservation) error {
	body := struct {
		identity `json:",inline"`
		Status   ipamv1.IPReservationStatus `json:"status"`
	}{identify(want), want.Status}
	return o.apply(ctx, want, body, "status")
}

// apply applies a configuration and stores the object from the response in the informer.
func (o *Objects) apply(ctx context.Context, want *ipamv1.IPReservation, body any, subresource ...string) error {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	data, _ := json.Marshal(body) // cannot fail: the body contains only strings, booleans and times
	got := &ipamv1.IPReservation{}
	err := o.client.Patch(types.ApplyPatchType).Namespace(want.Namespace).Resource(resource).Name(want.Name).
		SubResource(subresource...).Param("fieldManager", fieldManager).Param("force", "true").
		Body(data).Do(ctx).Into(got)
	if err != nil {
		return err
	}
	return o.Learn(got, false)
}

// Remove deletes an object. If an object with the same name and another UID exists, Remove returns
// the API server's conflict error and deletes nothing. It returns nil if the object does not exist.
func (o *Objects) Remove(ctx context.Context, r *ipamv1.IPReservation) error {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	err := o.client.Delete().Namespace(r.Namespace).Resource(resource).Name(r.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return o.Learn(r, true)
}

// readNodeUID returns the UID of the node's object. It requests only the metadata of the node.
func readNodeUID(ctx context.Context, core rest.Interface, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	object := &metav1.PartialObjectMetadata{}
	raw, err := core.Get().Resource("nodes").Name(node).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(raw, object)
	}
	if err != nil {
		return "", err
	}
	if object.UID == "" {
		return "", fmt.Errorf("node %s has no UID", node)
	}
	return string(object.UID), nil
}
