package persistentpodstate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

const (
	hostname = corev1.LabelHostname
	zone     = corev1.LabelTopologyZone
)

var began = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// cluster is the labels of nodes by the nodes' names.
type cluster map[string]map[string]string

func (c cluster) nodes(name string) (map[string]string, bool) {
	labels, ok := c[name]
	return labels, ok
}

// notReady is the label of a node that has not been ready since that time.
const notReady = "not-ready-since"

// all returns the nodes as API objects.
func (c cluster) all() []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(c)) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: c[name]}}
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
		if since, err := time.Parse(time.RFC3339, c[name][notReady]); err == nil {
			ready.Status, ready.LastTransitionTime = corev1.ConditionUnknown, metav1.NewTime(since)
		}
		n.Status.Conditions = append(n.Status.Conditions, ready)
		nodes = append(nodes, n)
	}
	return nodes
}

// threeWithoutNode1 returns a cluster of three nodes, of which node1 has not been ready since a
// time.
func threeWithoutNode1(since time.Time) cluster {
	c := three()
	c["node1"][notReady] = since.Format(time.RFC3339)
	return c
}

// Get and List implement the manager's cache.
func (c cluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	for _, n := range c.all() {
		if n.Name == key.Name {
			n.DeepCopyInto(o.(*corev1.Node))
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
}

func (c cluster) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	for _, n := range c.all() {
		if o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(n.Labels)) {
			list.(*corev1.NodeList).Items = append(list.(*corev1.NodeList).Items, *n)
		}
	}
	return nil
}

// three returns a cluster of three nodes. The third has no zone.
func three() cluster {
	return cluster{
		"node1": {hostname: "node1", zone: "a"},
		"node2": {hostname: "node2", zone: "b"},
		"node3": {hostname: "node3"},
	}
}

// db returns a StatefulSet with three replicas.
func db(change ...func(*unstructured.Unstructured)) *workload {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "StatefulSet",
		"metadata": map[string]any{"namespace": "ns", "name": "db", "uid": "set-1",
			"creationTimestamp": began.Format(time.RFC3339)},
		"spec": map[string]any{"replicas": int64(3)},
	}}
	for _, c := range change {
		c(u)
	}
	return workloadOf(u)
}

func with(value any, path ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

// state returns a PersistentPodState for db, with the zone required and the hostname preferred.
func state(change ...func(*pps.PersistentPodState)) *pps.PersistentPodState {
	required := pps.Term(zone)
	o := &pps.PersistentPodState{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", Generation: 1},
		Spec: pps.PersistentPodStateSpec{
			TargetRef:                   pps.TargetReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db"},
			RequiredPersistentTopology:  &required,
			PreferredPersistentTopology: []pps.PreferredTopologyTerm{{Weight: 100, Preference: pps.Term(hostname)}},
		},
		Status: pps.PersistentPodStateStatus{ObservedGeneration: 1, TargetUID: "set-1"},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

// recorded sets the status, given as names of pods and nodes.
func recorded(podOnNode ...string) func(*pps.PersistentPodState) {
	return func(o *pps.PersistentPodState) {
		o.Status.PodStates = map[string]pps.PodState{}
		for i := 0; i < len(podOnNode); i += 2 {
			node := podOnNode[i+1]
			o.Status.PodStates[podOnNode[i]] = pps.PodState{NodeName: node,
				NodeTopologyLabels: pick(three()[node], []string{hostname, zone})}
		}
	}
}

// requires sets the required labels.
func requires(keys ...string) func(*pps.PersistentPodState) {
	return func(o *pps.PersistentPodState) {
		o.Spec.RequiredPersistentTopology = nil
		if len(keys) > 0 {
			term := pps.Term(keys...)
			o.Spec.RequiredPersistentTopology = &term
		}
	}
}

func prefers(terms ...pps.PreferredTopologyTerm) func(*pps.PersistentPodState) {
	return func(o *pps.PersistentPodState) { o.Spec.PreferredPersistentTopology = terms }
}

func keeps(keys ...string) func(*pps.PersistentPodState) {
	return func(o *pps.PersistentPodState) {
		for _, key := range keys {
			o.Spec.PersistentPodAnnotations = append(o.Spec.PersistentPodAnnotations,
				pps.PersistentPodAnnotation{Key: key})
		}
	}
}

func until(p pps.RetentionPolicy) func(*pps.PersistentPodState) {
	return func(o *pps.PersistentPodState) { o.Spec.PersistentPodStateRetentionPolicy = p }
}

// made counts the pods, so that each has its own UID.
var made int

func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	made++
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID:               types.UID(fmt.Sprintf("pod-%d", made)),
		CreationTimestamp: metav1.NewTime(began.Add(time.Minute)),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set-1", Controller: new(true)}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func assignedTo(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}

func startedOn(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName, p.Status.PodIP = node, "10.244.1.7" }
}

func readyOn(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		startedOn(node)(p)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { annotate(p, key, value) }
}

func leaving(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began.Add(time.Hour)} }

func ownedBy(uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].UID = uid }
}

// seen returns the history of the pods, in that order.
func seen(pods ...*corev1.Pod) *history {
	s := newHistory()
	for _, p := range pods {
		s.observe(p)
	}
	return s
}

func (s *history) observe(pod *corev1.Pod) {
	g := podViewOf(pod, builtIn, func(targetKey) []string { return slices.Collect(maps.Keys(pod.Annotations)) })
	s.Observe(g.target, g.name, g.seen)
}

func (s *history) without(pods ...*corev1.Pod) *history {
	for _, p := range pods {
		s.Deleted(targetOf(state()), p.Name, p.UID, began.Add(time.Hour))
	}
	return s
}
