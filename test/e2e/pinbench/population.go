package pinbench

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A population is the objects of a large cluster: nodes, pods and their reservations. Nothing runs
// there. A fifth of the reservations is held for pods that are away.
type population struct {
	Nodes, Reservations int
	Away                bool // all pods are
}

const (
	writers    = 32 // at a time
	namespaces = 100
	window     = time.Hour // of the annotation of the pods
)

func (c population) held(i int) bool { return c.Away || i%5 == 0 }

func (c population) node(i int) int         { return i % c.Nodes }
func (c population) nodeName(i int) string  { return fmt.Sprintf("big-%d", c.node(i)) }
func (c population) namespace(i int) string { return fmt.Sprintf("tenant-%d", i%namespaces) }
func (c population) podName(i int) string {
	return fmt.Sprintf("database-%d-%d", i/namespaces/8, i/namespaces%8)
}
func (c population) address(i int) string {
	return fmt.Sprintf("100.%d.%d.%d", 64+i>>16, i>>8&255, i&255)
}
func (c population) leaseID(i int) string { return fmt.Sprintf("%016x", i) }
func (c population) away() (numbers []int) {
	for i := range c.Reservations {
		if c.held(i) {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// bigNode returns a node with as many labels and images as a used one has.
func (c population) bigNode(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.nodeName(i), Labels: map[string]string{
		corev1.LabelHostname: c.nodeName(i), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), corev1.LabelTopologyRegion: "region-1",
		corev1.LabelInstanceTypeStable: "standard-32"}}}
	for j := range 12 {
		n.Labels[fmt.Sprintf("example.com/feature-%d", j)] = "enabled"
	}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Allocatable = n.Status.Capacity
	for j := range 50 {
		repository := fmt.Sprintf("registry.example.com/team-%d/service-%d", j%7, j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 100 << 20, Names: []string{
			repository + "@sha256:" + strings.Repeat(fmt.Sprintf("%02x", j), 32), repository + ":v1.0." +
				fmt.Sprint(j)}})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason:            "Simulated",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	return n
}

// pod returns a pod of a StatefulSet, as its controller creates it.
func (c population) pod(i int) *corev1.Pod {
	name, no, yes := c.podName(i), false, true
	set := name[:strings.LastIndexByte(name, '-')]
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(i), Name: name,
		Labels: map[string]string{"app.kubernetes.io/name": set, "app.kubernetes.io/part-of": "bench",
			"statefulset.kubernetes.io/pod-name": name, "controller-revision-hash": set + "-5d9c6b7f8b"},
		Annotations: map[string]string{policy.Annotation: "60m", "prometheus.io/scrape": "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set,
			UID: "0b2a9c1e-52f7-4a53-9d2c-6c1f7d1e0a11", Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: corev1.PodSpec{Hostname: name, Subdomain: set, AutomountServiceAccountToken: &no,
			Containers: containers("10m", "16Mi")}}
	for j := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "some value"})
	}
	return p
}

// boundPod returns the pod bound to its node, with the label of the webhook.
func (c population) boundPod(i int) *corev1.Pod {
	p := c.pod(i)
	p.Labels[wellknown.LabelRetained] = wellknown.Retained
	p.Spec.NodeName = c.nodeName(i)
	return p
}

// filled has the UIDs of the objects of a population, "" for a pod that is away, and since when
// those pods are away.
type filled struct {
	nodes, pods []string
	since       time.Time
}

// awayUID is the UID of each pod that is away.
const awayUID = "7a1e5c5e-0d0f-4c53-b4f6-2f1e6c3a9d10"

func (c population) reservation(i int, f filled) *v1alpha1.IPReservation {
	nodeUID, podUID := f.nodes[c.node(i)], f.pods[i]
	if c.held(i) {
		podUID = awayUID
	}
	r := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(i), Name: v1alpha1.ObjectName(c.podName(i), nodeUID),
			Labels: map[string]string{
				v1alpha1.LabelNodeHash: v1alpha1.Hash(c.nodeName(i)),
				v1alpha1.LabelPodHash:  v1alpha1.Hash(c.podName(i))}},
		Spec: v1alpha1.IPReservationSpec{PodName: c.podName(i), NodeName: c.nodeName(i), NodeUID: nodeUID},
		Status: v1alpha1.IPReservationStatus{ID: c.leaseID(i), State: v1alpha1.Bound, Window: "1h0m0s",
			Confirmed: true,
			PodUID:    podUID, AddressList: c.address(i),
			Addresses: []v1alpha1.Address{{Network: "cbr0", Interface: "eth0", Address: c.address(i)}}},
	}
	if c.held(i) {
		until := metav1.NewTime(f.since.Add(window).Truncate(time.Second))
		r.Status.State, r.Status.HeldUntil = v1alpha1.Held, &until
	}
	return r
}

// fill creates the objects of a population.
func (b *Bench) fill(ctx context.Context, c population) (filled, error) {
	f := filled{nodes: make([]string, c.Nodes), pods: make([]string, c.Reservations)}
	for i := range namespaces {
		name := c.namespace(i)
		if _, err := b.client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return f, err
		}
		// The controller manager may not run.
		_, err := b.client.CoreV1().ServiceAccounts(name).Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return f, err
		}
	}
	err := b.each(ctx, "nodes", c.Nodes, func(ctx context.Context, i int) error {
		n, err := b.client.CoreV1().Nodes().Create(ctx, c.bigNode(i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		f.nodes[i] = string(n.UID)
		n.Spec.Taints = nil // "not ready" is on every new node
		_, err = b.client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return f, err
	}
	err = b.each(ctx, "pods", c.Reservations, func(ctx context.Context, i int) error {
		if c.held(i) {
			return nil
		}
		p, err := b.client.CoreV1().Pods(c.namespace(i)).Create(ctx, c.boundPod(i), metav1.CreateOptions{})
		if err == nil {
			f.pods[i] = string(p.UID)
		}
		return err
	})
	if err != nil {
		return f, err
	}
	f.since = time.Now()
	return f, b.fillReservations(ctx, c, f)
}

// fillReservations writes each reservation with its status at once, which takes half the time: the
// CRD has no status subresource meanwhile.
func (b *Bench) fillReservations(ctx context.Context, c population, f filled) error {
	reservations, err := reservationClient(b.api)
	if err != nil {
		return err
	}
	object := func(i int) *v1alpha1.IPReservation { return c.reservation(i, f) }
	if err := b.patchCRD(ctx, `[{"op": "remove", "path": "/spec/versions/0/subresources"}]`); err != nil {
		return err
	}
	err = until(ctx, func() (bool, error) {
		r := object(0)
		err := reservations.Create(ctx, r)
		if err != nil || r.Status.State != "" {
			return err == nil, err
		}
		return false, reservations.Delete(ctx, r) // not yet
	})
	if err != nil {
		return fmt.Errorf("a reservation with its status: %w", err)
	}
	err = b.each(ctx, "reservations", c.Reservations, func(ctx context.Context, i int) error {
		if i == 0 {
			return nil
		}
		return reservations.Create(ctx, object(i))
	})
	if err != nil {
		return err
	}
	return b.patchCRD(ctx, `[{"op": "add", "path": "/spec/versions/0/subresources", "value": {"status": {}}}]`)
}

func (b *Bench) patchCRD(ctx context.Context, patch string) error {
	cmd := exec.CommandContext(ctx, b.cluster.Kubectl(), "--kubeconfig="+b.cluster.Kubeconfig(), "patch", "crd",
		v1alpha1.Resource.GroupResource().String(), "--type=json", "--patch="+patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl patch: %w\n%s", err, out)
	}
	return nil
}

func reservationClient(api *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	api = rest.CopyConfig(api)
	api.ContentType, api.AcceptContentTypes = "", "" // custom resources are JSON
	return client.New(api, client.Options{Scheme: scheme})
}

// each calls do count times, concurrently, and logs the progress every ten seconds.
func (b *Bench) each(ctx context.Context, what string, count int, do func(context.Context, int) error) error {
	group, in := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	var done atomic.Int64
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for i := range count {
		select {
		case <-ticker.C:
			b.say("%d of %d %s", done.Load(), count, what)
		default:
		}
		group.Go(func() error {
			defer done.Add(1)
			return do(in, i)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	b.say("%d %s", count, what)
	return nil
}
