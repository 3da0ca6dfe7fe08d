package scenarios

import (
	"errors"
	"fmt"
	"os"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// eventsReported produces every event, in a network with five addresses and a short maximum window.
func eventsReported(t *Test) {
	const longest = 5 * time.Second
	n := t.Node(3)
	network := five(t.NS, "bridge", n)
	network.IPAM = map[string]any{"maxWindow": longest.String()}
	t.Networks(n, network)
	t.Step("an echoserver with a window of 10 min starts on %s, where the maximum is %s", n.Name, longest)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()["echoserver-0"]
	t.Step("%s", t.EventOf(before, "ReservationLimited", "10m0s", "cut to", longest.String()))
	set.Scale(0)
	// Until the hold is collected, because a new pod defers its end.
	t.Eventually("its window ends", func() error {
		for _, e := range t.History(n) {
			if e.Event == "Expired" && e.Pod == before.Name {
				return nil
			}
		}
		return errors.New("the journal has no such entry")
	})
	after := scaledTo(set, 1)["echoserver-0"]
	t.Step("%s", t.EventOf(after, "AddressChanged", addresses(after)+" instead of "+addresses(before),
		"its window ended"))

	t.Step("the pods of a ReplicaSet and a Job take the other four addresses; they have a window, but their names " +
		"are not used again")
	others := t.Deployment("others", n, 3, KeptFor("10"))
	t.job("job", n)
	pods := merge(others.Ready(), t.set("job", 1).Ready())
	t.Eventually("their leases have no window", func() error {
		leases := t.Leases(n)
		for _, l := range leases {
			if _, is := pods[l.Pod]; is && l.Window != "" {
				return fmt.Errorf("%s has a window of %s", l.Pod, l.Window)
			}
		}
		return nil
	})
	t.InSync(n, "five addresses are in use")
	t.Eventually("one of them has the event AddressPoolLow", func() error {
		for _, p := range pods {
			for _, text := range t.Events(string(p.UID), "AddressPoolLow") {
				t.Step("%s", text)
				return nil
			}
		}
		return errors.New("none does")
	})

	t.Step("the directory of the plugins belongs to another user, as with some installers: the plugin is installed")
	dir, plugin := n.Disk("/opt/cni/bin"), n.Disk("/opt/cni/bin/leasehold")
	t.Must(os.Chown(dir, 1000, 1000))
	t.Cleanup(func() { t.Must(os.Chown(dir, 0, 0)) })
	t.Must(os.Chmod(plugin, 0o700)) // so that there is something to do
	t.RestartAgent(n)
	info, err := os.Stat(plugin)
	t.Must(err)
	if info.Mode().Perm() != 0o755 {
		t.Fatalf("the plugin's mode is %v", info.Mode())
	}
}

// job creates a Job whose pod runs forever.
func (t *Test) job(name string, n *cluster.Node) {
	template := t.echoserver(name, n, 1).Spec.Template
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: template}}
	_, err := t.Client.BatchV1().Jobs(t.NS).Create(t.Ctx, job, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(t.Clear)
}

// staticPods is the kubelet's directory of the manifests of static pods.
const staticPods = "/etc/kubernetes/manifests"

// staticPod checks a pod whose object in the API has another UID than the runtime uses.
func staticPod(t *Test) {
	n := t.Node(3)
	file := n.Root() + staticPods + "/" + t.NS + ".yaml"
	name := "static-" + n.Name
	put := func(generation int) corev1.Pod {
		tmp := n.Root() + staticPods + "/." + t.NS // the kubelet ignores names that begin with a dot
		t.Must(os.WriteFile(tmp, fmt.Appendf(nil, staticManifest, t.NS, generation), 0o600))
		t.Must(os.Rename(tmp, file))
		return t.mirror(name, generation)
	}
	t.Cleanup(func() {
		t.Must(os.RemoveAll(file))
		t.Clear()
	})
	t.Step("a static pod starts on %s", n.Name)
	before := put(1)
	hash := before.Annotations["kubernetes.io/config.hash"]
	r := t.reservation(name, n)
	if r.Status.PodUID != hash || hash == string(before.UID) {
		t.Fatalf("its reservation is of %s, want %s; its object is %s", r.Status.PodUID, hash, before.UID)
	}
	t.Step("its sandbox is %s's, its object is %s; the annotation is changed", hash, before.UID)
	t.Kubectl("annotate", "--overwrite", "pod", name, Window+"=1h")
	t.windowBecomes(n, "1h0m0s")
	t.Step("its manifest changes: another pod replaces it")
	after := put(2)
	t.Kept(Pods{name: before}, Pods{name: after})
	t.InSync(n, "the pod is replaced")
	t.Step("%s", t.EventOf(after, "AddressKept", addresses(after)))
}

const staticManifest = `apiVersion: v1
kind: Pod
metadata:
  name: static
  namespace: %s
  annotations:
    ` + Window + `: "10"
    generation: "%d"
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echoserver
    image: cilium/echoserver:latest
    imagePullPolicy: Never
`

// mirror waits until the mirror pod of a static pod is Ready in a generation, and its reservation
// is published.
func (t *Test) mirror(name string, generation int) corev1.Pod {
	var found corev1.Pod
	t.Eventually(name+" is Ready", func() error {
		p, err := t.Client.CoreV1().Pods(t.NS).Get(t.Ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errors.New("it is not there")
		}
		t.Must(err)
		if p.Annotations["generation"] != fmt.Sprint(generation) || !ready(*p) {
			return fmt.Errorf("generation %s is %s", p.Annotations["generation"], p.Status.Phase)
		}
		found = *p
		return nil
	})
	t.Eventually(name+" is published", func() error {
		hash := found.Annotations["kubernetes.io/config.hash"]
		for _, r := range t.Reservations() {
			if r.Spec.PodName == name && r.Status.PodUID == hash {
				return nil
			}
		}
		return errors.New("it is not")
	})
	return found
}
