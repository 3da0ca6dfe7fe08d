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
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
)

// FieldManager is the name under which the agent applies its fields; others' stay as they are.
const FieldManager = "leasehold-agent"

// Objects is the live list of the node's objects, and how they are written.
type Objects struct {
	live.Table[*ipamv1.IPReservation, *ipamv1.IPReservation]
	client rest.Interface
	node   string
	log    *slog.Logger
	// byLabel: the API server has no field selectors for custom resources (before 1.31).
	byLabel atomic.Bool
}

// NewObjects returns the list of a node's objects; Run fills it.
func NewObjects(client rest.Interface, node string, log *slog.Logger) *Objects {
	return &Objects{client: client, node: node, log: log, Table: live.Table[*ipamv1.IPReservation, *ipamv1.IPReservation]{
		Trim: func(r *ipamv1.IPReservation) *ipamv1.IPReservation { return r },
		Strip: func(r *ipamv1.IPReservation) {
			r.ManagedFields = nil
			if r.Spec.NodeName != node {
				// Selected by a hash that another node's name shares: there is nothing of ours in it.
				r.Spec, r.Status = ipamv1.IPReservationSpec{}, ipamv1.IPReservationStatus{}
			}
		},
	}}
}

const resource = "ipreservations"

// Run keeps the list up to date until ctx is done.
func (o *Objects) Run(ctx context.Context) error {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := &ipamv1.IPReservationList{}
			o.choose(&options)
			err := o.client.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
			o.learnSelector(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			o.choose(&options)
			w, err := o.client.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
			o.learnSelector(err)
			return w, err
		},
	}
	return o.Watch(ctx, lw, "reservations of this node", o.log)
}

func (o *Objects) choose(options *metav1.ListOptions) {
	if o.byLabel.Load() {
		options.LabelSelector = labels.Set{ipamv1.LabelNodeHash: ipamv1.Hash(o.node)}.String()
		return
	}
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.node).String()
}

func (o *Objects) learnSelector(err error) {
	if apierrors.IsBadRequest(err) && !o.byLabel.Swap(true) {
		o.log.Info("the API server selects reservations by label alone", "error", err)
	}
}

// identity is what every applied configuration begins with.
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

// ApplySpec makes the object, or brings its spec and labels to what is wanted.
func (o *Objects) ApplySpec(ctx context.Context, want *ipamv1.IPReservation) error {
	body := struct {
		identity `json:",inline"`
		Spec     ipamv1.IPReservationSpec `json:"spec"`
	}{identify(want), want.Spec}
	body.Metadata.Labels = want.Labels
	return o.apply(ctx, want, body)
}

// ApplyStatus brings the status of an object that is there to what is wanted.
func (o *Objects) ApplyStatus(ctx context.Context, want *ipamv1.IPReservation) error {
	body := struct {
		identity `json:",inline"`
		Status   ipamv1.IPReservationStatus `json:"status"`
	}{identify(want), want.Status}
	return o.apply(ctx, want, body, "status")
}

func (o *Objects) apply(ctx context.Context, want *ipamv1.IPReservation, body any, subresource ...string) error {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	got := &ipamv1.IPReservation{}
	err = o.client.Patch(types.ApplyPatchType).Namespace(want.Namespace).Resource(resource).Name(want.Name).
		SubResource(subresource...).Param("fieldManager", FieldManager).Param("force", "true").Body(data).Do(ctx).Into(got)
	if err == nil {
		o.Learn(got, false)
	}
	return err
}

// Remove deletes the very object that was seen.
func (o *Objects) Remove(ctx context.Context, r *ipamv1.IPReservation) error {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	err := o.client.Delete().Namespace(r.Namespace).Resource(resource).Name(r.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	o.Learn(r, true)
	return nil
}

// NodeUID asks for the UID of the node's object.
func NodeUID(ctx context.Context, core rest.Interface, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	object := &metav1.PartialObjectMetadata{}
	raw, err := core.Get().Resource("nodes").Name(node).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(raw, object)
	}
	if err == nil && object.UID == "" {
		err = fmt.Errorf("node %s has no UID", node)
	}
	return string(object.UID), err
}
