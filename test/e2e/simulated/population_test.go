package simulated

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A population is the objects of a cluster: nodes, pods and their reservations. A fifth of the
// reservations is held for pods that are away.
type population struct {
	nodes, reservations int
}

const (
	writers    = 32 // at a time
	namespaces = 100
	window     = time.Hour // of the annotation of the pods
	// awayUID is the UID of each pod that is away.
	awayUID = "7a1e5c5e-0d0f-4c53-b4f6-2f1e6c3a9d10"
)

func (c population) isAway(i int) bool      { return i%5 == 0 }
func (c population) namespace(i int) string { return fmt.Sprintf("tenant-%d", i%namespaces) }
func (c population) podName(i int) string {
	return fmt.Sprintf("database-%d-%d", i/namespaces/8, i/namespaces%8)
}
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// newNode returns a node with as many labels and images as a used one has.
func newNode(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
		corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), corev1.LabelTopologyRegion: "region-1",
		corev1.LabelInstanceTypeStable: "standard-32"}}}
	for j := range 12 {
		n.Labels[fmt.Sprintf("example.com/feature-%d", j)] = "enabled"
	}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Allocatable = n.Status.Capacity
	for j := range 49 {
		name := fmt.Sprintf("registry.example.com/team-%d/service-%d", j%7, j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 100 << 20,
			Names: []string{name + "@sha256:" + strings.Repeat(fmt.Sprintf("%02x", j), 32), name + ":v1.0"}})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "Simulated", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	return n
}

// image is that of all pods. No node runs it.
const image = "bench/database:1"

func containers(cpu, memory string) []corev1.Container {
	return []corev1.Container{{Name: "main", Image: image,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}}
}

// pod returns a pod of a StatefulSet, as its controller creates it.
func (c population) pod(i int) *corev1.Pod {
	name := c.podName(i)
	set := name[:strings.LastIndexByte(name, '-')]
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(i), Name: name,
		Labels: map[string]string{"app.kubernetes.io/name": set, "app.kubernetes.io/part-of": "bench",
			"statefulset.kubernetes.io/pod-name": name, "controller-revision-hash": set + "-5d9c6b7f8b"},
		Annotations: map[string]string{policy.Annotation: "60m", "prometheus.io/scrape": "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set,
			UID: "0b2a9c1e-52f7-4a53-9d2c-6c1f7d1e0a11", Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: corev1.PodSpec{Hostname: name, Subdomain: set, AutomountServiceAccountToken: new(false),
			Containers: containers("10m", "16Mi")}}
	for j := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "some value"})
	}
	return p
}

// filled has the UIDs of the objects of a population.
type filled struct{ nodes, pods []string }

func (c population) reservation(i int, f filled) *v1alpha1.IPReservation {
	node, uid := nodeName(i%c.nodes), f.nodes[i%c.nodes]
	address := fmt.Sprintf("100.%d.%d.%d", 64+i>>16, i>>8&255, i&255)
	r := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(i), Name: v1alpha1.ObjectName(c.podName(i), uid),
			Labels: map[string]string{v1alpha1.LabelNodeHash: uid,
				v1alpha1.LabelPodHash: v1alpha1.Hash(c.podName(i))}},
		Spec: v1alpha1.IPReservationSpec{PodName: c.podName(i), NodeName: node, NodeUID: uid},
		Status: v1alpha1.IPReservationStatus{ID: fmt.Sprintf("%016x", i), State: v1alpha1.Bound, Window: "1h0m0s",
			Confirmed: true, PodUID: f.pods[i], AddressList: address,
			Addresses: []v1alpha1.Address{{Network: "cbr0", Interface: "eth0", Address: address}}},
	}
	if c.isAway(i) {
		until := metav1.NewTime(time.Now().Add(window).Truncate(time.Second))
		r.Status.State, r.Status.HeldUntil = v1alpha1.Held, &until
	}
	return r
}

// namespace creates a namespace, and waits until pods can be created there.
func (r *rig) namespace(name string) {
	_, err := r.client.CoreV1().Namespaces().Create(r.ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	r.must(err)
	r.until("namespace "+name+" has a service account", func() error {
		_, err := r.client.CoreV1().ServiceAccounts(name).Get(r.ctx, "default", metav1.GetOptions{})
		return err
	})
}

// fill creates the objects of a population.
func (r *rig) fill(c population) {
	f := filled{nodes: make([]string, c.nodes), pods: make([]string, c.reservations)}
	for i := range namespaces {
		r.namespace(c.namespace(i))
	}
	r.each("nodes", c.nodes, func(ctx context.Context, i int) error {
		n, err := r.client.CoreV1().Nodes().Create(ctx, newNode(i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		f.nodes[i] = string(n.UID)
		// "Not ready" is on every new node.
		_, err = r.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType,
			[]byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
		return err
	})
	objects := r.objects()
	r.each("agents", c.nodes, func(ctx context.Context, i int) error { return r.createAgent(ctx, objects, i) })
	r.each("pods", c.reservations, func(ctx context.Context, i int) (err error) {
		if f.pods[i] = awayUID; !c.isAway(i) {
			f.pods[i], err = r.createPod(ctx, c, i)
		}
		return err
	})
	r.each("reservations", c.reservations, func(ctx context.Context, i int) error {
		o := c.reservation(i, f)
		status := o.Status
		if err := objects.Create(ctx, o); err != nil {
			return err
		}
		o.Status = status
		return objects.Status().Update(ctx, o)
	})
}

// createPod creates a pod as the webhook and the scheduler leave it, and returns its UID.
func (r *rig) createPod(ctx context.Context, c population, i int) (uid string, err error) {
	p := c.pod(i)
	p.Labels[kube.LabelRetained] = kube.Retained
	p.Spec.NodeName = nodeName(i % c.nodes)
	p, err = r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return string(p.UID), nil
}

// createAgent creates the NodeAddressPool of a node, and the pod of its agent, which is ready.
func (r *rig) createAgent(ctx context.Context, objects client.Client, i int) error {
	pool := &v1alpha1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
	if err := objects.Create(ctx, pool); err != nil {
		return err
	}
	pool.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRetentionActive, Status: metav1.ConditionTrue,
		Reason: "Named", LastTransitionTime: metav1.Now()}}
	if err := objects.Status().Update(ctx, pool); err != nil {
		return err
	}
	pods := r.client.CoreV1().Pods(kube.Namespace)
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kube.AgentName, i),
			Labels: map[string]string{"app.kubernetes.io/name": kube.AgentName}},
		Spec: corev1.PodSpec{NodeName: nodeName(i), Containers: containers("10m", "16Mi")},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}}
	_, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// objects returns a client for leasehold's objects.
func (r *rig) objects() client.Client {
	scheme := runtime.NewScheme()
	r.must(v1alpha1.AddToScheme(scheme))
	objects, err := client.New(r.api, client.Options{Scheme: scheme})
	r.must(err)
	return objects
}

// recreate deletes the first pods that are not away, creates them again, and writes their
// reservations as their agents would.
func (r *rig) recreate(c population, count int) {
	objects := r.objects()
	r.each("pods again", count, func(ctx context.Context, i int) error {
		i += i/4 + 1 // the next that is not away
		p := c.pod(i)
		var all v1alpha1.IPReservationList
		err := objects.List(ctx, &all, client.InNamespace(p.Namespace),
			client.MatchingLabels{v1alpha1.LabelPodHash: v1alpha1.Hash(p.Name)})
		if err != nil {
			return err
		}
		o := &all.Items[0]
		until := metav1.NewTime(time.Now().Add(window).Truncate(time.Second))
		o.Status.State, o.Status.HeldUntil = v1alpha1.Held, &until
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		err = errors.Join(r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, now),
			objects.Status().Update(ctx, o))
		if err != nil {
			return err
		}
		o.Status.State, o.Status.HeldUntil = v1alpha1.Bound, nil
		if o.Status.PodUID, err = r.createPod(ctx, c, i); err != nil {
			return err
		}
		return objects.Status().Update(ctx, o)
	})
}

// each calls do count times, concurrently.
func (r *rig) each(what string, count int, do func(ctx context.Context, i int) error) {
	r.Helper()
	group, ctx := errgroup.WithContext(r.ctx)
	group.SetLimit(writers)
	began := time.Now()
	for i := range count {
		group.Go(func() error { return do(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		r.Fatalf("%s: %v", what, err)
	}
	r.Logf("%d %s in %.1f s", count, what, time.Since(began).Seconds())
}
