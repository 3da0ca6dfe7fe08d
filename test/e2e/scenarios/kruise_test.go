package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// kruiseCRD is Kruise's own: no short name, one spelling a version, one of both stored.
const kruiseCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: persistentpodstates.apps.kruise.io, labels: {app.kubernetes.io/managed-by: Helm}}
spec:
  group: apps.kruise.io
  names: {kind: PersistentPodState, listKind: PersistentPodStateList, plural: persistentpodstates, singular: persistentpodstate}
  scope: Namespaced
  versions: [VERSIONS]
`

const kruiseVersion = `
  - name: VERSION
    served: true
    storage: STORED
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            required: [targetRef]
            properties:
              targetRef:
                type: object
                required: [apiVersion, kind, name]
                properties: {apiVersion: {type: string}, kind: {type: string}, name: {type: string}}
              persistentPodAnnotations: {type: array, items: {type: object, required: [key], properties: {key: {type: string}}}}
              persistentPodStateRetentionPolicy: {type: string}
              requiredPersistentTopology: {type: object, required: [KEYS], properties: {KEYS: {type: array, items: {type: string}}}}
              preferredPersistentTopology:
                type: array
                items:
                  type: object
                  required: [preference, weight]
                  properties:
                    weight: {type: integer, format: int32}
                    preference: {type: object, required: [KEYS], properties: {KEYS: {type: array, items: {type: string}}}}
          status:
            type: object
            required: [observedGeneration]
            properties:
              observedGeneration: {type: integer, format: int64}
              podStates:
                type: object
                additionalProperties:
                  type: object
                  properties:
                    nodeName: {type: string}
                    nodeTopologyLabels: {type: object, additionalProperties: {type: string}}
                    annotations: {type: object, additionalProperties: {type: string}}
`

// kruisesCRD is Kruise's CRD with some of its versions; the last is stored.
func kruisesCRD(versions ...string) string {
	keys := map[string]string{"v1alpha1": "nodeTopologyKeys", "v1beta1": "keys"}
	var all strings.Builder
	for i, v := range versions {
		all.WriteString(strings.NewReplacer("VERSION", v, "KEYS", keys[v], "STORED", fmt.Sprint(i == len(versions)-1)).Replace(kruiseVersion))
	}
	return strings.Replace(kruiseCRD, " [VERSIONS]", all.String(), 1)
}

// kruisesObjects are PersistentPodStates as Kruise has them: one that it generated for a StatefulSet, and a person's, for one
// whose only pod is scaled away.
const kruisesObjects = `
apiVersion: apps.kruise.io/v1beta1
kind: PersistentPodState
metadata:
  name: echoserver
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: echoserver, uid: UID, controller: true, blockOwnerDeletion: true}]
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: echoserver}
  preferredPersistentTopology: [{weight: 100, preference: {keys: [kubernetes.io/hostname]}}]
---
apiVersion: apps.kruise.io/v1beta1
kind: PersistentPodState
metadata: {name: mine}
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: away}
  persistentPodStateRetentionPolicy: WhenDeleted
  requiredPersistentTopology: {keys: [kubernetes.io/hostname]}
`

const awaySet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: away}
spec:
  serviceName: away
  replicas: 0
  selector: {matchLabels: {app: away}}
  template:
    metadata: {labels: {app: away}}
    spec:
      containers: [{name: echoserver, image: "cilium/echoserver:latest", imagePullPolicy: IfNotPresent}]
`

// ppsKruise: from leasehold's CRD to Kruise's, and from Kruise to leasehold as docs/persistentpodstate.md says; no object is
// lost. An older Kruise's CRD is not served.
func ppsKruise(w *World) {
	const crd = "persistentpodstates.apps.kruise.io"
	w.Apply(w.manifest("echoserver.yaml"))
	set := w.set("echoserver", 2)
	before := set.Ready()
	w.Recorded("echoserver", before)
	w.Apply(awaySet)

	w.Step("Kruise comes")
	began := time.Now()
	gone := untilDone(func() {
		out, err := w.kubectl(kruise, "--namespace=kruise-system", "delete", "--ignore-not-found", "-f", "-")
		if err != nil {
			w.Fatalf("kubectl delete: %v\n%s", err, out)
		}
	})
	w.Cleanup(gone)
	comes := func() {
		if out, err := w.kubectl(kruise, "--namespace=kruise-system", "apply", "-f", "-"); err != nil {
			w.Fatalf("kubectl apply: %v\n%s", err, out)
		}
		w.ourWebhooks(false)
	}
	comes()
	said := w.saidOnce(w.Kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.uid}"), "KruisePresent")
	w.Step("ours stands aside after %.0f s: %s", time.Since(began).Seconds(), said)
	w.Kubectl("delete", "crd", crd)
	ours := untilDone(func() { // whatever becomes of Kruise's
		w.Kubectl("delete", "crd", crd, "--ignore-not-found")
		gone()
		w.Eventually(time.Minute, "leasehold's CRD", w.oursEstablished)
	})
	w.Cleanup(ours)
	w.create(kruisesCRD("v1alpha1"))
	w.Kubectl("delete", "mutatingwebhookconfiguration", "kruise-mutating-webhook-configuration")
	said = w.saidOnce(w.Kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.uid}"), "CRDUnfit")
	w.ourWebhooks(false)
	w.Step("without Kruise, and with an older one's CRD: %s", said)
	comes()
	w.Kubectl("delete", "crd", crd)
	w.create(kruisesCRD("v1alpha1", "v1beta1"))
	w.Kubectl("wait", "--for=condition=Established", "crd/"+crd, "--timeout=30s")
	w.create(strings.ReplaceAll(kruisesObjects, "UID", w.Kubectl("get", "statefulset", "echoserver", "-o", "jsonpath={.metadata.uid}")))
	w.Kubectl("patch", crd, "mine", "--subresource=status", "--type=merge",
		`-p={"status":{"observedGeneration":1,"podStates":{"away-0":{"nodeName":"node1","nodeTopologyLabels":{"kubernetes.io/hostname":"node1"}}}}}`)
	after := set.Recreate()
	w.cameHome(before, after)
	for _, p := range after {
		if _, bound := p.Annotations[injected]; bound {
			w.Fatalf("%s was bound by a PersistentPodState", p.Name)
		}
	}
	w.Step("with Kruise's CRD and objects, pods are pinned to their addresses as before")

	dir := filepath.Join(w.Bed.Dir, "run", w.NS)
	w.Must(os.MkdirAll(dir, 0o700))
	w.Cleanup(func() { os.RemoveAll(dir) })
	save, restore := w.fromKruise()
	out, err := w.shell(dir, save)
	if err != nil || strings.TrimSpace(out) != "2" {
		w.Fatalf("the recipe saved %s: %v", out, err)
	}
	w.Kubectl("delete", "crd", crd)
	gone()
	wait, apply, _ := strings.Cut(restore, "kubectl apply")
	if out, err := w.shell(dir, wait); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	w.ourWebhooks(true)
	w.Step("Kruise went with the CRD; ours is back, and so is the CRD")
	w.Eventually(30*time.Second, "what was saved is there", func() error {
		if out, err := w.shell(dir, "kubectl apply"+apply); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	w.Recorded("echoserver", after)
	w.RecordedAt("mine", map[string]string{"away-0": "node1"})
	again := set.Recreate()
	w.Kept(after, again)
	for _, p := range again {
		w.boundTo(p, "echoserver", hostnameLabel, p.Spec.NodeName)
	}
	w.Kubectl("annotate", "statefulset", "echoserver", "kruise.io/auto-generate-persistent-pod-state-")
	w.noState("echoserver")
	w.Step("every object is back, pods are bound again, and what Kruise generated goes with its annotation")
}

// create creates things that go with something else.
func (w *World) create(manifest string) {
	if out, err := w.kubectl(manifest, "create", "-f", "-"); err != nil {
		w.Fatalf("kubectl create: %v\n%s", err, out)
	}
}

// oursEstablished reports whether the CRD is leasehold's and served.
func (w *World) oursEstablished() error {
	out := w.Kubectl("get", "crd", "-l", "app.kubernetes.io/managed-by=leasehold", "-o",
		`jsonpath={.items[*].status.conditions[?(@.type=="Established")].status}`)
	if out != "True" {
		return fmt.Errorf("established: %q", out)
	}
	return nil
}

// fromKruise are the commands of the section of docs/persistentpodstate.md, before and after Kruise is uninstalled.
func (w *World) fromKruise() (save, restore string) {
	text, err := os.ReadFile(filepath.Join(w.Bed.Repo, "docs/persistentpodstate.md"))
	w.Must(err)
	_, section, _ := strings.Cut(string(text), "### From Kruise to leasehold\n")
	section, _, _ = strings.Cut(section, "\n### ")
	var commands strings.Builder
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands.WriteString(command)
		}
	}
	save, restore, found := strings.Cut(commands.String(), "helm uninstall kruise\n")
	if !found {
		w.Fatalf("the recipe does not uninstall Kruise: %s", commands.String())
	}
	return save, restore
}

// shell runs commands as an administrator would.
func (w *World) shell(dir, script string) (string, error) {
	ctx, cancel := context.WithTimeout(w.Ctx, 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Bed.Kubeconfig(), "PATH="+filepath.Dir(w.Bed.Kubectl())+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ourWebhooks waits until our webhook configurations have webhooks, or have none.
func (w *World) ourWebhooks(there bool) {
	w.Eventually(90*time.Second, "leasehold's webhooks for PersistentPodStates", func() error {
		c := w.Client.AdmissionregistrationV1()
		m, err := c.MutatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
		w.Must(err)
		v, err := c.ValidatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
		w.Must(err)
		if there != (len(m.Webhooks) > 0) || there != (len(v.Webhooks) > 0) {
			return fmt.Errorf("there are %d and %d", len(m.Webhooks), len(v.Webhooks))
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
	w.Step("with one, it does, also after the manifests were applied again")
	w.Kubectl("apply", "-f", filepath.Join(w.Bed.Repo, "daemonset/manager/topology.yaml"))
	c, err := w.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(w.Ctx, "leasehold-apps-kruise-io", metav1.GetOptions{})
	w.Must(err)
	if len(c.Webhooks) != 2 {
		w.Fatalf("%d webhooks are left", len(c.Webhooks))
	}
	w.Kubectl("delete", "pps", "echoserver")
	w.pps("normalize")
	// The name of the manager, with an administrator's rights.
	out, err := w.kubectl(strings.ReplaceAll(kruisesCRD("v1beta1"), "persistentpodstate", "otherpodstate"), "create", "-f", "-",
		"--as=system:serviceaccount:leasehold-system:leasehold-manager", "--as-group=system:masters")
	if err == nil || !strings.Contains(out, "the manager may only create the CRD of PersistentPodState") {
		w.Fatalf("it makes another CRD: %v, %s", err, out)
	}
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
