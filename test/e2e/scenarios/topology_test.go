package scenarios

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	hostnameLabel = corev1.LabelHostname
	zoneLabel     = corev1.LabelTopologyZone
	oldZoneLabel  = corev1.LabelFailureDomainBetaZone
	injected      = "kruise.io/injected-persistent-pod-state"
)

var podStates = schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1",
	Resource: "persistentpodstates"}

// manifest reads one of the documented manifests and replaces parts of it.
func (t *Test) manifest(name string, oldnew ...string) string {
	text, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "test/e2e/manifests", name))
	t.Must(err)
	return strings.NewReplacer(oldnew...).Replace(string(text))
}

// dataDir returns a directory on the disk of each node, which is removed when the scenario ends.
func (t *Test) dataDir() string {
	dir := "/var/lib/e2e-data/" + t.NS
	t.Cleanup(func() {
		for _, name := range t.Cluster.NodeNames() {
			t.exec(t.Cluster.Node(name), "rm", "-rf", dir)
		}
	})
	return dir
}

// explicit returns the documented PersistentPodState for a built-in StatefulSet of the scenario's
// namespace, without the placeholder for more labels.
func (t *Test) explicit(oldnew ...string) string {
	return t.manifest("persistentpodstate.yaml", append(oldnew, "[,other node labels]", "", "namespace: echoserver",
		"namespace: "+t.NS,
		"apiVersion: apps.kruise.io/v1beta1\n    kind: StatefulSet", "apiVersion: apps/v1\n    kind: StatefulSet")...)
}

// set is a StatefulSet that was applied.
func (t *Test) set(name string, size int) *Set { return &Set{t: t, Name: name, size: size} }

// State reads a PersistentPodState; nil if there is none.
func (t *Test) State(name string) *unstructured.Unstructured {
	u, err := t.Dynamic.Resource(podStates).Namespace(t.NS).Get(t.Ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	t.Must(err)
	return u
}

// recordedOf returns the nodes of a PersistentPodState's pods.
func recordedOf(u *unstructured.Unstructured) map[string]string {
	at := map[string]string{}
	if u == nil {
		return at
	}
	states, _, _ := unstructured.NestedMap(u.Object, "status", "podStates")
	for pod := range states {
		at[pod], _, _ = unstructured.NestedString(u.Object, "status", "podStates", pod, "nodeName")
	}
	return at
}

// Recorded waits until a PersistentPodState has exactly these pods where they are.
func (t *Test) Recorded(name string, pods Pods) *unstructured.Unstructured {
	want := map[string]string{}
	for pod, p := range pods {
		want[pod] = p.Spec.NodeName
	}
	return t.RecordedAt(name, want)
}

// RecordedAt waits until a PersistentPodState has exactly these pods on these nodes.
func (t *Test) RecordedAt(name string, want map[string]string) *unstructured.Unstructured {
	var u *unstructured.Unstructured
	t.Becomes("PersistentPodState "+name, want, func() any {
		if u = t.State(name); u == nil {
			return "none"
		}
		return recordedOf(u)
	})
	return u
}

// boundTo checks that the PersistentPodState echoserver has bound pods to the nodes of their
// predecessors: their annotation, and their preferred node affinity.
func (t *Test) boundTo(before, pods Pods) {
	for name, pod := range pods {
		want := corev1.PreferredSchedulingTerm{Weight: 100, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: hostnameLabel, Operator: corev1.NodeSelectorOpIn,
				Values: []string{before[name].Spec.NodeName}}}}}
		a := pod.Spec.Affinity
		if pod.Annotations[injected] != "echoserver" || a == nil || a.NodeAffinity == nil || !slices.ContainsFunc(
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			func(term corev1.PreferredSchedulingTerm) bool { return reflect.DeepEqual(term, want) }) {
			t.Fatalf("%s was on %s, and now has the annotations %v and the affinity %+v", name,
				before[name].Spec.NodeName, pod.Annotations, a)
		}
	}
}

// shownInBothVersions checks what kubectl shows of a PersistentPodState with a preferred hostname.
func (t *Test) shownInBothVersions(pods Pods) {
	for version, key := range map[string]string{"v1alpha1": "nodeTopologyKeys", "v1beta1": "keys"} {
		out := t.Kubectl("get", "persistentpodstates."+version+".apps.kruise.io", "echoserver", "-o", "yaml")
		for _, p := range pods {
			for _, line := range []string{
				"apiVersion: apps.kruise.io/" + version,
				"  - preference:", "      " + key + ":\n      - kubernetes.io/hostname", "    weight: 100",
				"    " + p.Name + ":\n      nodeName: " + p.Spec.NodeName +
					"\n      nodeTopologyLabels:\n        kubernetes.io/hostname: " + p.Spec.NodeName,
			} {
				if !strings.Contains(out, line) {
					t.Fatalf("kubectl get in %s shows no %q:\n%s", version, line, out)
				}
			}
		}
	}
}

// ppsExplicit tests the documented object, in both versions, and that the webhook and the CRD
// reject others.
func ppsExplicit(t *Test) {
	for i := range t.Cluster.NodeNames() {
		t.Label(t.Node(i+1), oldZoneLabel, fmt.Sprintf("zone-%d", i/2))
	}
	without := []string{`kruise.io/auto-generate-persistent-pod-state: "true"`, ""}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		t.Step("in %s", version)
		words := []string{}
		if version == "v1beta1" {
			words = []string{"apiVersion: apps.kruise.io/v1alpha1\nkind: PersistentPodState",
				"apiVersion: apps.kruise.io/v1beta1\nkind: PersistentPodState", "nodeTopologyKeys:", "keys:"}
		}
		t.Apply(t.explicit(words...))
		for _, r := range []struct{ from, to, message string }{
			{"metadata:\n  name: echoserver", "metadata:\n  name: second", "can have only one"},
			{"    name: echoserver", "    name: other", "targetRef cannot be changed"},
			{"[,other node labels]", "[,other node labels]", "not the name of a node label"}, // the documented text
			{"weight: 100", "weight: 0", "greater than or equal to 1"},
			{"spec:\n", "spec:\n  persistentPodStateRetentionPolicy: Never\n", "WhenDeleted"},
		} {
			t.Step("%s", t.Refused(t.explicit(append([]string{r.from, r.to}, words...)...), r.message))
		}
		t.Apply(t.manifest("echoserver.yaml", without...))
		set := t.set("echoserver", 2)
		before := set.Ready()
		t.Recorded("echoserver", before)
		after := set.Recreate()
		t.Kept(before, after)
		t.boundTo(before, after)
		for _, p := range after {
			if zone := t.object(p.Spec.NodeName).Labels[oldZoneLabel]; p.Spec.NodeSelector[oldZoneLabel] != zone {
				t.Fatalf("%s is bound to the zone %q, want %q", p.Name, p.Spec.NodeSelector[oldZoneLabel], zone)
			}
		}
		if version == "v1alpha1" {
			t.Step("a user changes the list by one of its names")
			t.Kubectl("patch", "pps", "echoserver", "--type=json",
				`-p=[{"op":"replace","path":"/spec/requiredPersistentTopology/keys","value":["kubernetes.io/os"]}]`)
			out := t.Kubectl("get", "persistentpodstates.v1alpha1.apps.kruise.io", "echoserver", "-o",
				"jsonpath={.spec.requiredPersistentTopology.nodeTopologyKeys}")
			if out != `["kubernetes.io/os"]` {
				t.Fatalf("the other name has %s", out)
			}
		}
		t.Kubectl("delete", "statefulset", "echoserver")
		t.Kubectl("delete", "pps", "echoserver")
		t.Clear()
	}
}

// ppsZone tests a required zone and a preferred host.
func ppsZone(t *Test) {
	one, two, three := t.Node(1), t.Node(2), t.Node(3)
	t.Label(one, zoneLabel, "a")
	t.Label(two, zoneLabel, "a")
	t.Label(three, zoneLabel, "b")
	openTwo, openThree := t.Cordon(two), t.Cordon(three)
	t.Step("an echoserver starts on %s; %s is in its zone, %s is not", one.Name, two.Name, three.Name)
	const role = "e2e.leasehold.dev/role"
	t.Apply(t.manifest("echoserver.yaml", "replicas: 2", "replicas: 1", "  annotations:\n    kruise.io",
		"  annotations:\n"+
			"    kruise.io/persistent-pod-annotations: "+role+"\n"+
			"    kruise.io/required-persistent-topology: "+zoneLabel+"\n    kruise.io"))
	set := t.set("echoserver", 1)
	first := set.Ready()
	t.RecordedAt("echoserver", map[string]string{"echoserver-0": one.Name})
	t.Kubectl("annotate", "pod", "echoserver-0", role+"=leader")
	t.Becomes("its recorded annotation", "leader", func() any {
		got, _, _ := unstructured.NestedString(t.State("echoserver").Object, "status", "podStates", "echoserver-0",
			"annotations", role)
		return got
	})
	openTwo()
	openThree()
	openOne := t.Cordon(one)
	second := set.Recreate()
	if at := second["echoserver-0"].Spec.NodeName; at != two.Name {
		t.Fatalf("%s is cordoned, and the pod went to %s, not to %s", one.Name, at, two.Name)
	}
	t.Step("%s was cordoned: it runs on %s with %s", one.Name, two.Name, addresses(second["echoserver-0"]))
	t.boundTo(first, second)
	if got := second["echoserver-0"].Annotations[role]; got != "leader" {
		t.Fatalf("its annotation %s is restored as %q", role, got)
	}
	t.RecordedAt("echoserver", map[string]string{"echoserver-0": two.Name})
	openTwo = t.Cordon(two)
	set.Delete(second)
	set.waits("echoserver-0", second)
	t.Step("it waits while the whole zone is cordoned")
	openTwo()
	third := set.ReadyBut(second)
	if at := third["echoserver-0"].Spec.NodeName; at != two.Name {
		t.Fatalf("it went to %s", at)
	}
	openOne()

	t.Step("the user's own selector asks for the other zone")
	t.Kubectl("patch", "statefulset", "echoserver", "--type=merge",
		`-p={"spec":{"template":{"spec":{"nodeSelector":{"`+zoneLabel+`":"b"}}}}}`)
	fourth := set.ReadyBut(third)
	if at := fourth["echoserver-0"].Spec.NodeName; at != three.Name {
		t.Fatalf("it went to %s", at)
	}
	t.Step("it runs where its selector requires: %s", t.EventOf(fourth["echoserver-0"], "PinNotPossible",
		"PersistentPodState echoserver", "own selector", zoneLabel+"=a"))
}

// ppsRetention tests when the states of pods are removed, and which ordinals count.
func ppsRetention(t *Test) {
	manual := t.manifest("echoserver.yaml", "replicas: 2",
		"replicas: 3\n  podManagementPolicy: Parallel\n  ordinals: {start: 5}")
	t.Step("echoserver-5, -6 and -7 start")
	t.Apply(manual)
	set := t.set("echoserver", 3)
	before := set.Ready()
	t.Recorded("echoserver", before)
	t.shownInBothVersions(before)
	t.Step("scaled down to echoserver-5, and up again")
	set.Scale(1)
	t.RecordedAt("echoserver", map[string]string{"echoserver-5": before["echoserver-5"].Spec.NodeName})
	set.Scale(3)
	after := set.Ready()
	t.Kept(before, after) // by the reservation, which is kept longer than the recorded state
	t.Recorded("echoserver", after)

	t.Step("WhenDeleted: all states are kept")
	t.Kubectl("patch", "pps", "echoserver", "--type=merge",
		`-p={"spec":{"persistentPodStateRetentionPolicy":"WhenDeleted"}}`)
	set.Scale(0)
	u := t.Recorded("echoserver", after)
	t.Becomes("its observed generation", u.GetGeneration(), func() any {
		g, _, _ := unstructured.NestedInt64(t.State("echoserver").Object, "status", "observedGeneration")
		return g
	})
	set.Scale(3)
	again := set.Ready()
	t.Kept(before, again)
	t.boundTo(after, again)

	t.Step("the StatefulSet is deleted: its PersistentPodState goes with it")
	t.Kubectl("delete", "statefulset", "echoserver", "--wait=false")
	t.gone("pps/echoserver")
	t.Step("and recreated, with a PersistentPodState of a user")
	t.Apply(t.explicit("nodeTopologyKeys:\n      - failure-domain.beta.kubernetes.io/zone",
		"nodeTopologyKeys:\n      - kubernetes.io/os"))
	// Pods that are still being deleted have a former StatefulSet as their owner. Their end does
	// not wake the controller, which may wait for minutes by then because it cannot create their
	// successors.
	t.Kubectl("wait", "pod", "--selector=app=echoserver", "--for=delete", "--timeout=1m")
	t.Apply(strings.ReplaceAll(manual, `kruise.io/auto-generate-persistent-pod-state: "true"`, ""))
	t.Recorded("echoserver", set.Ready())
	t.Kubectl("delete", "statefulset", "echoserver")
	t.RecordedAt("echoserver", map[string]string{})
}

// ppsGoneNode checks that a required hostname of a deleted node binds no pod, not even one that
// waits already.
func ppsGoneNode(t *Test) {
	n := t.Node(2)
	open := []func(){t.Cordon(t.Node(1)), t.Cordon(t.Node(3))}
	t.Step("an echoserver starts on %s, whose hostname is required; then its kubelet stops", n.Name)
	t.Apply(t.manifest("echoserver.yaml", "replicas: 2", "replicas: 1", "preferred-persistent", "required-persistent"))
	set := t.set("echoserver", 1)
	before := set.Ready()
	t.Recorded("echoserver", before)
	for _, o := range open {
		o()
	}
	t.withoutKubelet(n)
	t.waitNotReady(n)
	t.forceDelete(before)
	waiting := set.waits("echoserver-0", before)
	if waiting.Spec.NodeSelector[hostnameLabel] != n.Name {
		t.Fatalf("it is bound to %v", waiting.Spec.NodeSelector)
	}
	t.Step("its successor waits for %s, which is now removed from the cluster", n.Name)
	t.Must(t.Client.CoreV1().Nodes().Delete(t.Ctx, n.Name, metav1.DeleteOptions{}))
	after := set.ReadyBut(Pods{"echoserver-0": waiting})
	pod := after["echoserver-0"]
	if pod.Spec.NodeName == n.Name || pod.Annotations["leasehold.dev/topology-reason"] != "node "+n.Name+" is gone" {
		t.Fatalf("it is on %s: %v", pod.Spec.NodeName, pod.Annotations)
	}
	t.Step("it was replaced (%s) and runs on %s", t.EventOf(waiting, "PodReplaced", n.Name, "gone"), pod.Spec.NodeName)
	t.noReservation("echoserver-0", n) // its owner was the node
	t.Recorded("echoserver", after)
}

// ppsEtcd tests etcd members that are configured by each other's addresses, which they have had
// before: without the list of members etcd only ends.
func ppsEtcd(t *Test) {
	data := t.dataDir()
	apply := func(members ...string) {
		t.Apply(t.manifest("etcd.yaml", "BINARIES", filepath.Join(t.Cluster.Dir, "bin/etcd"), "DATA", data, "MEMBERS",
			strings.Join(members, ",")))
	}
	apply()
	set := t.set("etcd", 3)
	var first Pods
	t.Becomes("members with addresses", 3, func() any {
		first = set.Pods()
		return len(strings.Fields(addressSet(first)))
	})
	t.published(first)
	var members []string
	for _, name := range slices.Sorted(maps.Keys(first)) {
		members = append(members, name+"=http://"+first[name].Status.PodIP+":2380")
	}
	apply(members...)
	set.Delete(first)
	pods := set.ReadyBut(first)
	t.Kept(first, pods)
	t.Step("three members: %v; each is deleted in turn", members)
	keys := 0
	write := func() {
		keys++
		for _, p := range pods {
			key := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "k%d", keys))
			t.memberAnswers(p, "v3/kv/put", fmt.Sprintf(`{"key":%q,"value":"eA=="}`, key), "revision")
		}
		for _, p := range pods {
			t.memberAnswers(p, "v3/kv/range", `{"key":"AA==","range_end":"AA==","count_only":true}`,
				fmt.Sprintf(`"count":"%d"`, keys))
		}
	}
	write()
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		gone := Pods{name: pods[name]}
		set.Delete(gone)
		pods = set.ReadyBut(gone)
		write()
	}
	t.Step("a rolling update")
	pods = set.Rollout()
	write()
	t.Kept(first, pods)
}

// memberAnswers waits until a member of etcd gives an answer with a text.
func (t *Test) memberAnswers(p corev1.Pod, path, body, text string) {
	t.Eventually(p.Name+" answers", func() error {
		out, err := t.Client.CoreV1().RESTClient().Post().Namespace(p.Namespace).Resource("pods").
			Name(p.Name + ":2379").SubResource("proxy").Suffix(path).Body([]byte(body)).Timeout(3 * time.Second).
			DoRaw(t.Ctx)
		if err == nil && !strings.Contains(string(out), text) {
			err = fmt.Errorf("%s, want %s", out, text)
		}
		return err
	})
}
