package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// likeStatefulSet is a CRD whose objects are taken as they come.
const likeStatefulSet = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: PLURAL.GROUP
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: PLURAL, kind: KIND}
  versions: [VERSIONS]
`

const anySchema = `{name: VERSION, served: true, storage: STORED, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`

// madeCRD makes a CRD for the length of the scenario. The last version is stored.
func (w *World) madeCRD(group, plural, kind string, versions ...string) {
	var all []string
	for i, v := range versions {
		all = append(all, strings.NewReplacer("VERSION", v, "STORED", fmt.Sprint(i == len(versions)-1)).Replace(anySchema))
	}
	w.ApplyFor(strings.NewReplacer("GROUP", group, "PLURAL", plural, "KIND", kind, "VERSIONS", strings.Join(all, ", ")).Replace(likeStatefulSet))
	w.Kubectl("wait", "--for=condition=Established", "crd/"+plural+"."+group, "--timeout=30s")
}

// ApplyFor applies a manifest of things outside of the scenario's namespace, and deletes them with the scenario.
func (w *World) ApplyFor(manifest string) {
	w.Cleanup(func() {
		if out, err := w.kubectl(manifest, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			w.Fatalf("kubectl delete: %v\n%s", err, out)
		}
	})
	if out, err := w.kubectl(manifest, "apply", "-f", "-"); err != nil {
		w.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// podOf makes a pod of a workload, as its controller would: the workload's template, its name and its owner.
func (w *World) podOf(resource schema.GroupVersionResource, workload, name string) corev1.Pod {
	owner, err := w.Dynamic.Resource(resource).Namespace(w.NS).Get(w.Ctx, workload, metav1.GetOptions{})
	w.Must(err)
	template, _, err := unstructured.NestedMap(owner.Object, "spec", "template")
	w.Must(err)
	text, err := json.Marshal(template)
	w.Must(err)
	var pod corev1.Pod
	w.Must(json.Unmarshal(text, &pod))
	pod.Name = name
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: workload,
		UID: owner.GetUID(), Controller: new(true)}}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["statefulset.kubernetes.io/pod-name"] = name
	w.Eventually(time.Minute, name+" is made", func() error {
		_, err := w.Client.CoreV1().Pods(w.NS).Create(w.Ctx, &pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // its predecessor is on its way out
			return err
		}
		w.Must(err)
		return nil
	})
	return pod
}

// ppsKinds: workloads of kinds that come while the manager runs. Nobody but the scenario makes their pods.
func ppsKinds(w *World) {
	w.ApplyFor(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: e2e-databases
  labels: {leasehold.dev/pps-kinds: "true"}
rules:
- {apiGroups: ["e2e.leasehold.dev"], resources: ["databases"], verbs: ["get", "list", "watch"]}
`)
	w.Eventually(30*time.Second, "the manager may list databases", func() error {
		if rules := w.Kubectl("get", "clusterrole", "leasehold-manager-kinds", "-o", "jsonpath={.rules}"); !strings.Contains(rules, "databases") {
			return fmt.Errorf("its rules are %s", rules)
		}
		return nil
	})
	w.madeCRD("e2e.leasehold.dev", "databases", "Database", "v1")
	w.madeCRD("apps.kruise.io", "statefulsets", "StatefulSet", "v1alpha1", "v1beta1")
	manual := w.manifest("echoserver-kruise.yaml")
	for _, kind := range []struct {
		resource schema.GroupVersionResource
		manifest string
		about    string
	}{
		{schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "statefulsets"}, manual, "the manual's StatefulSet of Kruise"},
		{schema.GroupVersionResource{Group: "e2e.leasehold.dev", Version: "v1", Resource: "databases"},
			strings.NewReplacer("apps.kruise.io/v1alpha1", "e2e.leasehold.dev/v1", "kind: StatefulSet", "kind: Database").Replace(manual),
			"a kind of --pps-kinds"},
	} {
		name := kind.resource.GroupResource().String()
		w.Step("%s: its annotations make a PersistentPodState", kind.about)
		w.Apply(kind.manifest)
		w.RecordedAt("echoserver", map[string]string{})
		set := w.set("echoserver", 2)
		w.podOf(kind.resource, "echoserver", "echoserver-0")
		w.podOf(kind.resource, "echoserver", "echoserver-1")
		before := set.Ready()
		u := w.Recorded("echoserver", before)
		if ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "targetRef"); ref["apiVersion"] != kind.resource.GroupVersion().String() {
			w.Fatalf("its target is %v", ref)
		}
		set.Delete(before)
		w.podOf(kind.resource, "echoserver", "echoserver-0")
		w.podOf(kind.resource, "echoserver", "echoserver-1")
		after := set.ReadyBut(before)
		w.Kept(before, after)
		for _, p := range after {
			w.boundTo(p, "echoserver", hostnameLabel, before[p.Name].Spec.NodeName)
		}
		w.Kubectl("patch", name, "echoserver", "--type=merge", `-p={"spec":{"replicas":1}}`)
		set.Delete(Pods{"echoserver-1": after["echoserver-1"]})
		w.RecordedAt("echoserver", map[string]string{"echoserver-0": after["echoserver-0"].Spec.NodeName})
		w.Kubectl("delete", name, "echoserver")
		w.noState("echoserver")
		w.Clear()
	}
}

// kruise is as much of Kruise as others can see of it.
const kruise = `
apiVersion: v1
kind: Namespace
metadata: {name: kruise-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kruise-controller-manager, namespace: kruise-system}
spec:
  selector: {matchLabels: {app: kruise}}
  template:
    metadata: {labels: {app: kruise}}
    spec:
      containers: [{name: manager, image: "cilium/echoserver:latest", imagePullPolicy: Never}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: kruise-mutating-webhook-configuration}
webhooks: []
`

// ppsKruise: Kruise comes, goes, and takes the CRD with it; no object is lost.
func ppsKruise(w *World) {
	w.Apply(w.manifest("echoserver.yaml"))
	set := w.set("echoserver", 2)
	before := set.Ready()
	w.Recorded("echoserver", before)
	w.Apply(w.explicit("metadata:\n  name: echoserver", "metadata:\n  name: mine", "    name: echoserver", "    name: away",
		"spec:\n  targetRef", "spec:\n  persistentPodStateRetentionPolicy: WhenDeleted\n  targetRef"))

	w.Step("Kruise comes")
	began := time.Now()
	gone := untilDone(func() {
		out, err := w.kubectl(kruise, "--namespace=kruise-system", "delete", "--ignore-not-found", "-f", "-")
		if err != nil {
			w.Fatalf("kubectl delete: %v\n%s", err, out)
		}
	})
	w.Cleanup(gone)
	if out, err := w.kubectl(kruise, "--namespace=kruise-system", "apply", "-f", "-"); err != nil {
		w.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	w.ourWebhooks(false)
	crd := w.Kubectl("get", "crd", "persistentpodstates.apps.kruise.io", "-o", "jsonpath={.metadata.uid}")
	said := w.saidOnce(crd, "KruisePresent")
	w.Step("ours stands aside after %.0f s: %s", time.Since(began).Seconds(), said)
	after := set.Recreate()
	w.cameHome(before, after)
	for _, p := range after {
		if _, bound := p.Annotations[injected]; bound {
			w.Fatalf("%s was bound by a PersistentPodState", p.Name)
		}
	}
	w.Step("pods are pinned to their addresses as before")

	// As docs/persistentpodstate.md says.
	saved := filepath.Join(w.Bed.Dir, "run", w.NS+".yaml")
	w.Cleanup(func() { os.Remove(saved) })
	w.Kubectl("patch", "pps", "mine", "--subresource=status", "--type=merge",
		`-p={"status":{"podStates":{"away-0":{"nodeName":"node1","nodeTopologyLabels":{"kubernetes.io/hostname":"node1"}}}}}`)
	var lines []string
	for line := range strings.Lines(w.Kubectl("get", "pps", "-A", "-o", "yaml")) {
		if !strings.HasPrefix(line, "    resourceVersion:") && !strings.HasPrefix(line, "    uid:") {
			lines = append(lines, line)
		}
	}
	w.Must(os.WriteFile(saved, []byte(strings.Join(lines, "")), 0o600))
	w.Kubectl("delete", "crd", "persistentpodstates.apps.kruise.io")
	gone()
	w.ourWebhooks(true)
	w.Kubectl("wait", "--for=condition=Established", "crd/persistentpodstates.apps.kruise.io", "--timeout=30s")
	w.Step("Kruise went with the CRD; ours is back, and so is the CRD")
	w.Eventually(30*time.Second, "what was saved is there", func() error {
		out, err := w.kubectl("", "apply", "-f", saved)
		if err == nil {
			out, err = w.kubectl("", "replace", "--subresource=status", "-f", saved)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	w.Recorded("echoserver", after)
	if w.State("mine") == nil {
		w.Fatalf("PersistentPodState mine is lost")
	}
	again := set.Recreate()
	w.Kept(after, again)
	for _, p := range again {
		w.boundTo(p, "echoserver", hostnameLabel, p.Spec.NodeName)
	}
	w.Step("every object is back, and pods are bound again")
}

// ourWebhooks waits until our webhook configurations are there, or are not; with pods, as long as there is an object.
func (w *World) ourWebhooks(there bool) {
	w.Eventually(90*time.Second, "leasehold's webhooks for PersistentPodStates", func() error {
		c := w.Client.AdmissionregistrationV1()
		_, err1 := c.MutatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
		_, err2 := c.ValidatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
		if there && (err1 != nil || err2 != nil) || !there && !(apierrors.IsNotFound(err1) && apierrors.IsNotFound(err2)) {
			return fmt.Errorf("want them: %v; %v, %v", there, err1, err2)
		}
		return nil
	})
}

// saidOnce waits for an event on something outside of the scenario's namespace, and checks that it is the only one.
func (w *World) saidOnce(uid, reason string) string {
	var texts []string
	w.Eventually(30*time.Second, "event "+reason, func() error {
		events, err := w.Client.CoreV1().Events("").List(w.Ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid + ",reason=" + reason})
		w.Must(err)
		texts = nil
		for _, e := range events.Items {
			texts = append(texts, e.Message)
		}
		if len(texts) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	if len(texts) > 1 {
		w.Fatalf("said %d times: %q", len(texts), texts)
	}
	return texts[0]
}

// ppsWebhook: pods are sent to the webhook only while there is a PersistentPodState.
func ppsWebhook(w *World) {
	w.pps("normalize")
	w.Step("without a PersistentPodState no pod goes through its webhook")
	w.Apply(w.explicit())
	w.pps("normalize", "pods")
	w.Kubectl("delete", "pps", "echoserver")
	w.pps("normalize")
	w.Step("with one, it does")
}

// pps waits until the mutating webhooks for PersistentPodStates are these.
func (w *World) pps(want ...string) {
	w.Eventually(30*time.Second, fmt.Sprintf("webhooks %q", want), func() error {
		c, err := w.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, h := range c.Webhooks {
			if len(h.ClientConfig.CABundle) == 0 {
				w.Fatalf("%s has no CA", h.Name)
			}
			names = append(names, strings.Split(h.Name, ".")[0])
		}
		if !slices.Equal(names, want) {
			return fmt.Errorf("there are %q", names)
		}
		return nil
	})
}
