package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// applyCRDs applies the CRDs of a manifest, deletes them with the scenario, and waits until they
// are established.
func (t *Test) applyCRDs(name string) {
	t.ApplyFor(t.manifest(name))
	t.KubectlWith(t.manifest(name), "wait", "--for=condition=Established", "-f", "-", "--timeout=30s")
}

// ApplyFor applies a manifest of objects outside of the scenario's namespace, and deletes them with
// the scenario.
func (t *Test) ApplyFor(manifest string) {
	t.Cleanup(func() { t.KubectlWith(manifest, "delete", "--ignore-not-found", "-f", "-") })
	t.KubectlWith(manifest, "apply", "-f", "-")
}

// podOf creates a pod of a workload as its controller would, from the workload's template and with
// its owner.
func (t *Test) podOf(resource schema.GroupVersionResource, workload, name string) corev1.Pod {
	owner, err := t.Dynamic.Resource(resource).Namespace(t.NS).Get(t.Ctx, workload, metav1.GetOptions{})
	t.Must(err)
	template, _, err := unstructured.NestedMap(owner.Object, "spec", "template")
	t.Must(err)
	text, err := json.Marshal(template)
	t.Must(err)
	var pod corev1.Pod
	t.Must(json.Unmarshal(text, &pod))
	pod.Name = name
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(),
		Name: workload, UID: owner.GetUID(), Controller: new(true)}}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["statefulset.kubernetes.io/pod-name"] = name
	t.Eventually(name+" is created", func() error {
		_, err := t.Client.CoreV1().Pods(t.NS).Create(t.Ctx, &pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // its predecessor is terminating
			return err
		}
		t.Must(err)
		return nil
	})
	return pod
}

// ppsKinds tests workloads of kinds that are added while the manager runs. They have no controller:
// the scenario creates their pods.
func ppsKinds(t *Test) {
	t.ApplyFor(t.manifest("databases-role.yaml"))
	t.Until("the manager may list databases", func() bool {
		rules := t.Kubectl("get", "clusterrole", "leasehold-manager-kinds", "-o", "jsonpath={.rules}")
		return strings.Contains(rules, "databases")
	})
	t.applyCRDs("databases.yaml")
	manual := t.manifest("echoserver-kruise.yaml")
	for _, kind := range []struct {
		resource schema.GroupVersionResource
		manifest string
		about    string
	}{
		{schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "statefulsets"}, manual,
			"the manual's StatefulSet of Kruise"},
		{schema.GroupVersionResource{Group: "e2e.leasehold.dev", Version: "v1", Resource: "databases"},
			strings.NewReplacer("apps.kruise.io/v1alpha1", "e2e.leasehold.dev/v1", "kind: StatefulSet",
				"kind: Database").Replace(manual),
			"a kind of --pps-kinds"},
	} {
		name := kind.resource.GroupResource().String()
		t.Step("%s: its annotations create a PersistentPodState", kind.about)
		t.Apply(kind.manifest)
		t.RecordedAt("echoserver", map[string]string{})
		set := t.set("echoserver", 2)
		t.podOf(kind.resource, "echoserver", "echoserver-0")
		t.podOf(kind.resource, "echoserver", "echoserver-1")
		before := set.Ready()
		u := t.Recorded("echoserver", before)
		ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "targetRef")
		if ref["apiVersion"] != kind.resource.GroupVersion().String() {
			t.Fatalf("its target is %v", ref)
		}
		set.Delete(before)
		t.podOf(kind.resource, "echoserver", "echoserver-0")
		t.podOf(kind.resource, "echoserver", "echoserver-1")
		after := set.ReadyBut(before)
		t.Kept(before, after)
		t.boundTo(before, after)
		t.Kubectl("patch", name, "echoserver", "--type=merge", `-p={"spec":{"replicas":1}}`)
		set.Delete(Pods{"echoserver-1": after["echoserver-1"]})
		t.RecordedAt("echoserver", map[string]string{"echoserver-0": after["echoserver-0"].Spec.NodeName})
		t.Kubectl("delete", name, "echoserver")
		t.gone("pps/echoserver")
		t.Clear()
	}
}

// ppsKruise migrates from leasehold's CRD to Kruise's, and back as documented in
// docs/persistentpodstate.md; no object is lost. The CRD of an older Kruise is not served.
func ppsKruise(t *Test) {
	const crd = "persistentpodstates.apps.kruise.io"
	t.Apply(t.manifest("echoserver.yaml"))
	set := t.set("echoserver", 2)
	before := set.Ready()
	t.Recorded("echoserver", before)
	t.Apply(t.manifest("away.yaml"))

	kruise, objects := t.manifest("kruise.yaml"), t.manifest("kruise-objects.yaml")
	ofKruise := t.manifest("kruise-crd.yaml")
	older, _, _ := strings.Cut(ofKruise, "  - name: v1beta1\n")
	t.Step("Kruise is installed")
	began := time.Now()
	gone := t.undo(func() {
		t.KubectlWith(kruise, "--namespace=openkruise", "delete", "--ignore-not-found", "-f", "-")
	})
	comes := func() {
		t.KubectlWith(kruise, "--namespace=openkruise", "apply", "-f", "-")
		t.served(false)
	}
	comes()
	said := t.singleEvent(t.Kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.uid}"), "KruisePresent")
	t.Step("leasehold stops serving PersistentPodStates after %.0f s: %s", time.Since(began).Seconds(), said)
	t.Kubectl("delete", "crd", crd)
	t.Cleanup(func() { // also if Kruise's CRD is left
		t.Kubectl("delete", "crd", crd, "--ignore-not-found")
		gone()
		t.Kubectl("apply", "-f", t.manifests(), "-l", "app.kubernetes.io/name=persistentpodstates")
		t.Kubectl("wait", "--for=condition=Established", "crd/"+crd, "--timeout=30s")
	})
	t.create(strings.Replace(older, "storage: false", "storage: true", 1))
	t.Kubectl("delete", "mutatingwebhookconfiguration", "kruise-mutating-webhook-configuration")
	said = t.singleEvent(t.Kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.uid}"), "CRDUnfit")
	t.Step("without Kruise, and with the CRD of an older one: %s", said)
	comes()
	t.Kubectl("delete", "crd", crd)
	t.create(ofKruise)
	t.Kubectl("wait", "--for=condition=Established", "crd/"+crd, "--timeout=30s")
	t.create(strings.ReplaceAll(objects, "UID", t.Kubectl("get", "statefulset", "echoserver", "-o",
		"jsonpath={.metadata.uid}")))
	t.Kubectl("patch", crd, "mine", "--subresource=status", "--type=merge",
		`-p={"status":{"observedGeneration":1,"podStates":{"away-0":{"nodeName":"node1","nodeTopologyLabels":{`+
			`"kubernetes.io/hostname":"node1"}}}}}`)
	after := set.Recreate()
	t.onSameNodes(before, after)
	for _, p := range after {
		if _, bound := p.Annotations[injected]; bound {
			t.Fatalf("%s was bound by a PersistentPodState", p.Name)
		}
	}
	t.Step("with Kruise's CRD and objects, pods are pinned to their addresses as before")

	dir := filepath.Dir(filepath.Dir(t.manifests()))
	save, restore := t.kruiseCommands()
	out, err := t.shell(dir, save)
	if err != nil || strings.TrimSpace(out) != "2" {
		t.Fatalf("the recipe saved %s: %v", out, err)
	}
	t.Kubectl("delete", "crd", crd)
	gone()
	const restored = "kubectl apply -f pps.yaml"
	ownCRD, apply, _ := strings.Cut(restore, restored)
	if out, err := t.shell(dir, ownCRD); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.served(true)
	t.Step("Kruise and its CRD are removed, and leasehold's is applied; leasehold serves PersistentPodStates again")
	t.Eventually("the saved objects are restored", func() error {
		if out, err := t.shell(dir, restored+apply); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	t.Recorded("echoserver", after)
	t.RecordedAt("mine", map[string]string{"away-0": "node1"})
	again := set.Recreate()
	t.Kept(after, again)
	t.boundTo(after, again)
	t.Kubectl("annotate", "statefulset", "echoserver", "kruise.io/auto-generate-persistent-pod-state-")
	t.gone("pps/echoserver")
	t.Step("every object is restored, pods are bound again, and the one that Kruise generated ends with its annotation")
}

// create creates objects that are deleted together with another one.
func (t *Test) create(manifest string) {
	t.KubectlWith(manifest, "create", "-f", "-")
}

// manifests writes the manifests of leasehold into a directory of the scenario, under the path that
// the documents name, and returns that of the file. They are removed with the scenario.
func (t *Test) manifests() string {
	dir := filepath.Join(t.Cluster.Dir, "run", t.NS)
	path := filepath.Join(dir, "dist/leasehold-v0.1.0-replace.yaml")
	t.Must(os.MkdirAll(filepath.Dir(path), 0o700))
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Must(os.WriteFile(path,
		[]byte(t.Kubectl("kustomize", filepath.Join(t.Cluster.Repo, "daemonset/overlays/replace"))), 0o600))
	return path
}

// kruiseCommands returns the commands of the section "From Kruise to leasehold" of
// docs/persistentpodstate.md, before and after Kruise is uninstalled.
func (t *Test) kruiseCommands() (save, restore string) {
	commands := strings.Join(t.indented("docs/persistentpodstate.md", "### From Kruise to leasehold"), "")
	save, restore, found := strings.Cut(commands, "helm uninstall kruise\n")
	if !found {
		t.Fatalf("the recipe does not uninstall Kruise: %s", commands)
	}
	return save, restore
}

// shell runs commands as an administrator would, who has leasectl as a plugin of kubectl.
func (t *Test) shell(dir, script string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+t.Cluster.Kubeconfig(), "PATH="+
		filepath.Dir(t.Cluster.Leasectl())+":"+filepath.Dir(t.Cluster.Kubectl())+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// served waits until all managers serve PersistentPodStates, or none does: then nobody refuses a
// target of an unknown kind.
func (t *Test) served(want bool) {
	bad := t.manifest("kruise-objects.yaml", "UID", "1", "kind: StatefulSet", "kind: Deployment")
	_, bad, _ = strings.Cut(bad, "---\n")
	t.Eventually(fmt.Sprintf("PersistentPodStates are served: %t", want), func() error {
		for _, m := range t.Managers() { // the API server calls any of them
			log := t.Kubectl("logs", "--namespace="+m.Namespace, m.Name)
			_, role, _ := strings.Cut(log[max(0, strings.LastIndex(log, "the role has changed")):], "serving=")
			if !strings.HasPrefix(role, strconv.FormatBool(want)) {
				return fmt.Errorf("not by %s", m.Name)
			}
		}
		out, err := t.kubectl(bad, "create", "--dry-run=server", "-f", "-")
		if refused := strings.Contains(out, "is not a supported kind"); refused != want {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// singleEvent waits for an event of an object outside of the scenario's namespace, and checks that
// it is the only one.
func (t *Test) singleEvent(uid, reason string) string {
	var texts []string
	t.Becomes("events "+reason, 1, func() any {
		texts = messages(t.events("", "involvedObject.uid="+uid+",reason="+reason))
		return len(texts)
	})
	return texts[0]
}
