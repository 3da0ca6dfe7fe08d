package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// fieldManager is the name of the agent as a field manager of server-side apply.
const fieldManager = "leasehold-agent"

// listInterval is the time between two lists of the node's objects. The time is random, up to half
// as much longer. The API server compares all IPReservations for a list, so there must be few lists
// (docs/decisions.md, "Cost that does not grow with the nodes").
const listInterval = 12 * time.Hour

// readBackoff is the time until a failed list, or a failed read of a named object, is repeated. It
// is at most a minute.
var readBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second}

// Objects caches the node's IPReservations, and writes them. It does not watch them, because the
// API server would have to compare each change of an IPReservation for each node. It stores the
// response to each of its writes, reads an object that the manager names in the NodeAddressPool of
// the node, and lists all objects of the node at the start and every listInterval.
type Objects struct {
	*informer.Informer[*ipamv1.IPReservation]
	client rest.Interface
	node   string
	pool   *Pool
	log    *slog.Logger
	// byLabel is true if the API server does not support field selectors for custom resources, as
	// before Kubernetes 1.31. Then the objects are selected by the label with the hash of the
	// node's name.
	byLabel bool
	listAt  time.Time     // of the next list
	wake    notify.Signal // sent when relist was set
	backoff wait.Backoff
	read    map[ipamv1.ReservationReference]bool // those that were read since the manager has named them

	mu     sync.Mutex
	absent bool                // the API server did not serve IPReservations, and they were not listed since
	relist bool                // the next pass has to list the objects soon
	newest string              // resource version of the last response to a write
	fresh  map[string]struct{} // keys of the objects that were read or written since the last list began
}

// NewObjects returns the Objects of a node. They are empty until Run has received a list.
func NewObjects(client rest.Interface, node string, pool *Pool, log *slog.Logger) *Objects {
	view := func(r *ipamv1.IPReservation) *ipamv1.IPReservation {
		v := &ipamv1.IPReservation{ObjectMeta: metaOf(r)}
		// The label selects another node's object too if the hashes of their names are equal.
		if r.Spec.NodeName == node {
			v.Spec, v.Status = r.Spec, r.Status
			v.Status.Conditions = ours(v.Status.Conditions)
		}
		return v
	}
	return &Objects{Informer: informer.New(view, nil), client: client, node: node, pool: pool, log: log,
		backoff: readBackoff, fresh: map[string]struct{}{}}
}

// metaOf returns the part of an object's metadata that its view has: nothing that users may write.
func metaOf(o metav1.Object) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion()}
	for _, key := range []string{ipamv1.LabelNodeHash, ipamv1.LabelPodHash} {
		if value, found := o.GetLabels()[key]; found {
			metav1.SetMetaDataLabel(&m, key, value)
		}
	}
	return m
}

const resource = "ipreservations"

// Run lists and reads the objects until ctx is done. It returns ctx.Err().
func (o *Objects) Run(ctx context.Context) error {
	return informer.Loop(ctx, minInterval, informer.Any(ctx, o.pool.Changes(), o.wake.Subscribe()),
		func(ctx context.Context) time.Duration { return o.pass(ctx, time.Now()) })
}

// Relist makes the next pass list the objects soon.
func (o *Objects) Relist() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.relist = true
	o.wake.Send()
}

// pass lists the objects if it is time, and reads those that the manager names. It returns the time
// until the next pass.
func (o *Objects) pass(ctx context.Context, now time.Time) (requeueAfter time.Duration) {
	o.mu.Lock()
	if o.relist {
		o.relist, o.listAt = false, now.Add(wait.Jitter(time.Second, 1))
	}
	o.mu.Unlock()
	err := o.readNamed(ctx)
	if !now.Before(o.listAt) {
		if listErr := o.list(ctx); listErr == nil {
			o.listAt = now.Add(wait.Jitter(listInterval, 0.5))
		} else {
			err = listErr
		}
	}
	if err == nil {
		o.backoff = readBackoff
		return max(o.listAt.Sub(now), time.Millisecond)
	}
	if ctx.Err() == nil {
		o.log.Debug("reading reservations failed", "error", err)
	}
	return o.backoff.Step()
}

// list lists the objects of the node from the API server's watch cache.
func (o *Objects) list(ctx context.Context) error {
	o.mu.Lock()
	options := metav1.ListOptions{ResourceVersion: "0"}
	if o.newest != "" {
		options.ResourceVersion = o.newest // so that the list does not lack what this agent has written
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	clear(o.fresh)
	o.mu.Unlock()
	list, err := o.listWith(ctx, options)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.newest = "" // after a restore of etcd there is no such version
		return err
	}
	o.absent = false
	var objects []any
	for i := range list.Items {
		key := list.Items[i].Namespace + "/" + list.Items[i].Name
		if _, isFresh := o.fresh[key]; !isFresh {
			objects = append(objects, &list.Items[i])
		}
	}
	for key := range o.fresh {
		if r, found := o.Get(key); found {
			objects = append(objects, r)
		}
	}
	return o.Replace(objects, "")
}

func (o *Objects) listWith(ctx context.Context, options metav1.ListOptions) (*ipamv1.IPReservationList, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	list := &ipamv1.IPReservationList{}
	o.selectNode(&options)
	err := o.client.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
	if apierrors.IsBadRequest(err) && !o.byLabel {
		o.log.Info("field selector not supported, selecting reservations by label", "error", err)
		o.byLabel = true
		return o.listWith(ctx, options)
	}
	return list, err
}

// readNamed reads each object that the manager names, once for each of its states. It stops at the
// first read that may succeed later. It ignores a name that the API server rejects.
func (o *Objects) readNamed(ctx context.Context) error {
	read := map[ipamv1.ReservationReference]bool{}
	var problem error
	for _, ref := range o.pool.Named() {
		if !o.read[ref] && problem == nil {
			err := o.readObject(ctx, ref.Namespace, ref.Name)
			if isTransient(err) || isNotServed(err) {
				problem = err
			}
		}
		if o.read[ref] || problem == nil {
			read[ref] = true
		}
	}
	o.read = read
	return problem
}

// readObject reads an object from etcd, and stores it if it belongs to the node.
func (o *Objects) readObject(ctx context.Context, namespace, name string) error {
	r, err := ReadReservation(ctx, o.client, namespace, name, "")
	o.mu.Lock()
	defer o.mu.Unlock()
	key := namespace + "/" + name
	switch {
	case err != nil:
		return err
	case r == nil:
		if last, found := o.Get(key); found {
			o.fresh[key] = struct{}{}
			return o.Delete(last)
		}
		return nil
	case r.Spec.NodeName != o.node:
		return nil
	}
	o.fresh[key] = struct{}{}
	return o.Update(r)
}

// ReadReservation reads an IPReservation. It returns nil if it does not exist. With the resource
// version "0" the response comes from the watch cache and may be out of date; with "" it is
// current.
func ReadReservation(
	ctx context.Context, client rest.Interface, namespace, name, resourceVersion string,
) (*ipamv1.IPReservation, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	r := &ipamv1.IPReservation{}
	options := metav1.GetOptions{ResourceVersion: resourceVersion}
	err := client.Get().Namespace(namespace).Resource(resource).Name(name).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(r)
	if apierrors.IsNotFound(err) && !isNotServed(err) {
		return nil, nil
	}
	return r, err
}

// isNotServed reports whether err is the response of an API server that does not serve the
// resource, because its CRD is missing or being deleted.
func isNotServed(err error) bool {
	return apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Served reports whether the API server serves IPReservations, as far as is known. If it does not,
// they are listed until it does.
func (o *Objects) Served() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.absent
}

// selectNode restricts a list to the objects of the node.
func (o *Objects) selectNode(options *metav1.ListOptions) {
	options.FieldSelector, options.LabelSelector = "", ""
	if o.byLabel {
		options.LabelSelector = labels.Set{ipamv1.LabelNodeHash: ipamv1.Hash(o.node)}.String()
		return
	}
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.node).String()
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
	if apierrors.IsNotFound(err) && !isNotServed(err) {
		o.wasDeleted(want)
		return err
	}
	return o.wrote(got, false, err)
}

// wasDeleted removes an object that a write has not found. If the object was known, the others may
// have been deleted as well, so the next pass lists them.
func (o *Objects) wasDeleted(r *ipamv1.IPReservation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := r.Namespace + "/" + r.Name
	if _, isKnown := o.Get(key); !isKnown {
		return
	}
	o.fresh[key] = struct{}{}
	_ = o.Learn(r, true) // fails only for an object without metadata
	o.relist = true
	o.wake.Send()
}

// wrote stores the response to a write. gone is true if the object was deleted. It returns err, the
// error of the write.
func (o *Objects) wrote(r *ipamv1.IPReservation, gone bool, err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case isNotServed(err) && !o.absent:
		o.absent, o.relist = true, true
		o.wake.Send()
		return err
	case err != nil:
		return err
	case !gone:
		o.newest = r.ResourceVersion
	}
	o.fresh[r.Namespace+"/"+r.Name] = struct{}{}
	return o.Learn(r, gone)
}

// Remove deletes an object. If an object with the same name and another UID exists, Remove returns
// the API server's conflict error and deletes nothing. It returns nil if the object does not exist.
func (o *Objects) Remove(ctx context.Context, r *ipamv1.IPReservation) error {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	err := o.client.Delete().Namespace(r.Namespace).Resource(resource).Name(r.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}).Do(ctx).Error()
	if apierrors.IsNotFound(err) && !isNotServed(err) {
		err = nil
	}
	return o.wrote(r, true, err)
}

// readNodeUID returns the UID of the node's object from the API server's watch cache. It requests
// only the metadata of the node.
func readNodeUID(ctx context.Context, core rest.Interface, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	object := &metav1.PartialObjectMetadata{}
	raw, err := core.Get().Resource("nodes").Name(node).Param("resourceVersion", "0").
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
