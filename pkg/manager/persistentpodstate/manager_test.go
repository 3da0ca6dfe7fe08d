package persistentpodstate

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// noWebhooks is a webhook server that does nothing: the fake API server calls no webhooks.
type noWebhooks struct{ webhook.Server }

func (noWebhooks) Register(string, http.Handler)   {}
func (noWebhooks) Start(ctx context.Context) error { <-ctx.Done(); return nil }
func (noWebhooks) NeedLeaderElection() bool        { return false }

const (
	crdPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + crdName
	configsPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
	statesPath  = "/apis/apps.kruise.io/v1beta1/namespaces/ns/persistentpodstates/"
	setsPath    = "/apis/apps/v1/namespaces/ns/statefulsets/"
	podsOf      = "/api/v1/namespaces/ns/pods/"
	nodesPath   = "/api/v1/nodes/"
)

// newCluster returns a fake cluster without objects.
func newCluster(t *testing.T) *fakeapi.Cluster {
	kind := func(group, version, kind, resource string, namespaced bool) fakeapi.Kind {
		k := fakeapi.Kind{Resource: resource, Namespaced: namespaced, HasStatus: kind == "PersistentPodState"}
		k.Group, k.Version, k.Kind = group, version, kind
		return k
	}
	return fakeapi.NewCluster(t,
		kind("", "v1", "Node", "nodes", false), kind("", "v1", "Pod", "pods", true),
		kind("apps", "v1", "StatefulSet", "statefulsets", true),
		kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false),
		kind("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations",
			false),
		kind("apps.kruise.io", "v1beta1", "PersistentPodState", "persistentpodstates", true),
		kind("events.k8s.io", "v1", "Event", "events", true))
}

// startManager runs a manager with the feature and a fake cluster of three nodes, in which db has
// two pods.
func startManager(t *testing.T, more func(*fakeapi.Cluster), sinks ...logr.LogSink) *fakeapi.Cluster {
	c := newCluster(t)
	for name, labels := range three() {
		c.Put(nodesPath+name, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	}
	c.Put(crdPath, ownCRD(t).Object)
	put(c, aPod("db-0", readyOn("node1")))
	put(c, aPod("db-1", readyOn("node2")))
	if more != nil {
		more(c)
	}
	log := logr.Discard()
	if len(sinks) > 0 {
		log = logr.New(sinks[0])
	}
	mgr := newManager(t, c, log)
	ctx, stop := context.WithCancel(t.Context())
	if err := setup(mgr); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func newManager(t *testing.T, c *fakeapi.Cluster, log logr.Logger) manager.Manager {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme: scheme, Logger: log, WebhookServer: noWebhooks{}, HealthProbeBindAddress: "0",
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

func put(c *fakeapi.Cluster, pod *corev1.Pod) {
	labelled := pod.DeepCopy()
	labelled.Labels = map[string]string{podName: pod.Name}
	labelled.CreationTimestamp = metav1.Now()
	c.Put(podsOf+pod.Name, labelled)
}

func putSet(c *fakeapi.Cluster, change ...func(*unstructured.Unstructured)) {
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"uid": "set-1"},
		"spec": map[string]any{"replicas": int64(2)}}}
	for _, do := range change {
		do(u)
	}
	c.Put(setsPath+"db", u.Object)
}

func generates(u *unstructured.Unstructured) {
	u.SetAnnotations(map[string]string{pps.AnnotationGenerate: "true", pps.AnnotationRequiredTopology: hostname +
		"," + zone})
}

// recordedOf returns the recorded states, such as "db-0=node1/a".
func recordedOf(c *fakeapi.Cluster) string {
	var o pps.PersistentPodState
	c.Get(statesPath+"db", &o)
	var out []string
	for _, pod := range []string{"db-0", "db-1"} {
		if s, ok := o.Status.PodStates[pod]; ok {
			out = append(out, pod+"="+s.NodeName+"/"+s.NodeTopologyLabels[zone])
		}
	}
	return strings.Join(out, " ")
}

// TestAnnotatedWorkload covers all controllers, from an annotated workload to the recorded states,
// and the events that change them.
func TestAnnotatedWorkload(t *testing.T) {
	c := startManager(t, func(c *fakeapi.Cluster) { putSet(c, generates) })
	recorded := func(when, want string) {
		t.Helper()
		c.Until(when+": "+want, func() bool { return recordedOf(c) == want })
	}
	recorded("at first", "db-0=node1/a db-1=node2/b")
	labels := map[string]string{hostname: "node1", zone: "c"}
	c.Put(nodesPath+"node1", corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	recorded("a node has another label", "db-0=node1/c db-1=node2/b")

	c.Remove(podsOf + "db-1")
	put(c, aPod("db-1", readyOn("node1")))
	recorded("a pod is ready elsewhere", "db-0=node1/c db-1=node1/c")

	c.Remove(podsOf + "db-1")
	put(c, aPod("db-1", assignedTo("node2")))
	put(c, aPod("db-1", readyOn("node2")))
	recorded("a pod becomes ready later", "db-0=node1/c db-1=node2/b")

	var changed pps.PersistentPodState
	c.Get(statesPath+"db", &changed)
	term := pps.Term(zone)
	changed.Spec.RequiredPersistentTopology = &term
	changed.Annotations = map[string]string{"example.com/notes": "ours"}
	c.Put(statesPath+"db", changed)
	var restored pps.PersistentPodState
	c.Until("somebody has changed it", func() bool {
		return c.Get(statesPath+"db", &restored) && len(restored.Spec.RequiredPersistentTopology.Keys) == 2
	})
	if restored.Annotations["example.com/notes"] != "ours" {
		t.Errorf("annotations of others are lost: %v", restored.Annotations)
	}

	putSet(c, generates, func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, int64(1), "spec", "replicas")
	})
	c.Remove(podsOf + "db-1")
	recorded("scaled down", "db-0=node1/c")

	c.Remove(statesPath + "db")
	recorded("somebody has deleted it", "db-0=node1/c")

	putSet(c)
	c.Until("the annotation was removed", func() bool { return !c.Get(statesPath+"db", &pps.PersistentPodState{}) })
}

// A pod that requires the hostname of a node that is gone is deleted after GoneGrace.
func TestPodOfAGoneNodeIsDeleted(t *testing.T) {
	var logged atomic.Bool
	c := startManager(t, func(c *fakeapi.Cluster) { putSet(c) }, funcr.New(func(_, args string) {
		if strings.Contains(args, "waited for a node that is gone or not ready") {
			logged.Store(true)
		}
	}, funcr.Options{}).GetSink())
	c.Put(statesPath+"db", state(requires(hostname)))
	c.Until("recorded", func() bool { return recordedOf(c) != "" })
	waits := func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{hostname: "node1"}
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "leasehold.dev/topology-required", hostname+"=node1")
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, pps.AnnotationInjected, "db")
	}
	c.Remove(podsOf + "db-0")
	put(c, aPod("db-0", waits))
	time.Sleep(2 * time.Second)
	if !c.Get(podsOf+"db-0", &corev1.Pod{}) {
		t.Fatal("deleted although its node exists")
	}
	c.Remove(nodesPath + "node1")
	c.Until("its node is gone for longer than GoneGrace", func() bool { return !c.Get(podsOf+"db-0", &corev1.Pod{}) })
	c.Until("an Event says why", func() bool { return hasEvent(c, "ns", reasonReplaced) })
	c.Until("the log says so", logged.Load)
}

func hasEvent(c *fakeapi.Cluster, namespace, reason string) bool {
	var list eventsv1.EventList
	c.List("/apis/events.k8s.io/v1/namespaces/"+namespace+"/events", &list)
	for _, e := range list.Items {
		if e.Reason == reason {
			return true
		}
	}
	return false
}

// If Kruise is installed, leasehold does nothing, until it is gone.
func TestStandbyForKruise(t *testing.T) {
	c := startManager(t, func(c *fakeapi.Cluster) {
		putSet(c, generates)
		c.Put(configsPath+kruiseConfiguration, admission.MutatingWebhookConfiguration{})
	})
	c.Until("an Event says why", func() bool { return hasEvent(c, "default", "KruisePresent") })
	if c.Get(statesPath+"db", &pps.PersistentPodState{}) {
		t.Error("an object was generated")
	}
	c.Remove(configsPath + kruiseConfiguration)
	c.Until("the object is generated", func() bool { return c.Get(statesPath+"db", &pps.PersistentPodState{}) })
}

// setup adds the feature and the nodes to a manager.
func setup(mgr manager.Manager) error {
	nodes, err := control.WatchNodes(mgr)
	if err != nil {
		return err
	}
	return (&Feature{kinds: builtIn, goneGrace: time.Second}).Setup(mgr, nodes)
}
