package persistentpodstate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

const (
	hostname = corev1.LabelHostname
	zone     = corev1.LabelTopologyZone
)

var began = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// cluster is the labels of nodes by the nodes' names.
type cluster map[string]map[string]string

func (c cluster) node(name string) *corev1.Node {
	if i := slices.IndexFunc(c.all(), func(n *corev1.Node) bool { return n.Name == name }); i >= 0 {
		return c.all()[i]
	}
	return nil
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
	o := &workloadObject{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		panic(err)
	}
	return workloadOf(o, kube.StatefulSets[0])
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
				NodeTopologyLabels: control.Pick(three()[node], hostname, zone)}
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
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

func leaving(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began.Add(time.Hour)} }

func ownedBy(uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].UID = uid }
}

// seen returns views of pods.
func seen(pods ...*corev1.Pod) (views []*workloadPod) {
	for _, pod := range pods {
		keys := slices.Collect(maps.Keys(pod.Annotations))
		views = append(views, workloadPodOf(pod, kube.StatefulSets, func(targetKey) []string { return keys }))
	}
	return views
}

func noKeys(targetKey) []string { return nil }

// runs has a view observe pods, each of which replaces an earlier one with its name.
func (v *clusterView) runs(pods ...*corev1.Pod) *clusterView {
	for _, pod := range pods {
		made++
		pod.ResourceVersion = strconv.Itoa(made)
		if err := v.pods.Update(pod); err != nil {
			panic(err)
		}
	}
	return v
}

// ends has a view observe the deletion of pods.
func (v *clusterView) ends(pods ...*corev1.Pod) *clusterView {
	for _, pod := range pods {
		if err := v.pods.Delete(pod); err != nil {
			panic(err)
		}
	}
	return v
}

// viewOf returns a synced view of objects in a cluster of three nodes, without an API server.
func viewOf(objects ...*pps.PersistentPodState) *clusterView {
	v := unsynced().in(three())
	list(v.objects, objects...)
	list[*corev1.Pod](v.pods)
	return v
}

// unsynced returns a view that has listed nothing, of a replica that has run for an hour.
func unsynced() *clusterView {
	v := newView(&Feature{kinds: kube.StatefulSets, goneGrace: time.Minute}, kube.NewInformer(control.TrimNode, nil))
	v.startedAt = time.Now().Add(-time.Hour)
	return v
}

// in sets the nodes of a view.
func (v *clusterView) in(c cluster) *clusterView {
	list(v.nodes, c.all()...)
	for _, name := range v.left.Keys() {
		v.left.Remove(name)
	}
	return v
}

// list has an informer receive a complete list.
func list[O, V any](i *kube.Informer[V], objects ...O) {
	var all []any
	for _, o := range objects {
		all = append(all, o)
	}
	if err := i.Replace(all, ""); err != nil {
		panic(err)
	}
}

var statefulSet = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}

// has sets the workloads of a kind of a view.
func (v *clusterView) has(kind schema.GroupKind, synced bool, workloads ...*workload) *clusterView {
	byName := map[string]*workload{}
	var all []*workloadObject
	for _, w := range workloads {
		byName[w.Name], all = w, append(all, object(w))
	}
	view := func(o *workloadObject) *workload { return byName[o.Name] }
	v.workloads[kind] = kube.NewInformer(view, nil)
	if synced {
		list(v.workloads[kind], all...)
	}
	return v
}

// serves returns the role in which leasehold serves PersistentPodStates.
func serves() *role {
	r := &role{}
	r.serving.Store(true)
	return r
}

// admit returns a new pod after its admission with the view.
func (v *clusterView) admit(t *testing.T, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	req := request(t, pod)
	w := &webhooks{view: v, role: serves()}
	return patched[corev1.Pod](t, req, control.PodWebhook(logr.Discard(), w.pod).Handle(t.Context(), req))
}

// object returns the metadata of a workload as the API server sends it.
func object(w *workload) *workloadObject {
	return &workloadObject{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID}}
}
