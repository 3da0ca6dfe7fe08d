package scenarios

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
)

// told: in a network with five addresses and a short longest window, everything that an event is for happens.
func told(w *World) {
	const longest = 5 * time.Second
	n := w.Node(3)
	network := five(w.NS, "bridge", n)
	network.IPAM = map[string]any{"maxWindow": longest.String()}
	w.Networks(n, network)
	w.Step("an echoserver with a window of 10 min starts on %s, where %s are the most", n.Name, longest)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()["echoserver-0"]
	w.Step("%s", w.SaidOf(before, "ReservationLimited", "10m0s", "cut to", longest.String()))
	set.Scale(0)
	// Not before it is collected: a pod that is expected back by then has the hold put off.
	w.Eventually(longest+10*time.Second, "its window ends", func() error {
		for _, e := range w.History(n) {
			if e.Event == "Expired" && e.Pod == before.Name {
				return nil
			}
		}
		return errors.New("the journal does not say so")
	})
	after := scaledTo(set, 1)["echoserver-0"]
	w.Step("%s", w.SaidOf(after, "AddressChanged", addresses(after)+" instead of "+addresses(before), "its window ended"))

	w.Step("a ReplicaSet's and a Job's pods take the other four addresses; they ask for a window, and their names never come back")
	others := w.Deployment("others", n, 3, KeptFor("10"))
	w.job("job", n)
	pods := merge(others.Ready(), (&Set{w, "job", n, 1}).Ready())
	w.Eventually(soon, "nothing is kept for them", func() error {
		leases, _ := w.Leases(n)
		for _, l := range leases {
			if _, is := pods[l.Pod]; is && l.Window != "" {
				return fmt.Errorf("%s has a window of %s", l.Pod, l.Window)
			}
		}
		return nil
	})
	w.Truth(n, soon, "five addresses are in use")
	w.Eventually(30*time.Second, "the last of them says that the pool is low", func() error {
		for _, p := range pods {
			for _, text := range w.Events(string(p.UID), "AddressPoolLow") {
				w.Step("%s", text)
				return nil
			}
		}
		return errors.New("none does")
	})

	w.Step("the plugins' folder is another user's, as some installers leave it: the plugin is installed nevertheless")
	dir, plugin := n.Disk("/opt/cni/bin"), n.Disk("/opt/cni/bin/leasehold")
	w.Must(os.Chown(dir, 1000, 1000))
	w.Cleanup(func() { w.Must(os.Chown(dir, 0, 0)) })
	w.Must(os.Chmod(plugin, 0o700)) // so that there is something to do
	w.RestartAgent(n)
	info, err := os.Stat(plugin)
	w.Must(err)
	if info.Mode().Perm() != 0o755 {
		w.Fatalf("the plugin's mode is %v", info.Mode())
	}
}

// job creates a Job whose pod runs for ever.
func (w *World) job(name string, n *bed.Node) {
	template := w.echoserver(name, n, 1).Spec.Template
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: template}}
	_, err := w.Client.BatchV1().Jobs(w.NS).Create(w.Ctx, job, metav1.CreateOptions{})
	w.Must(err)
	w.Cleanup(w.Clear)
}

// staticPods is where a kubelet looks for the manifests of pods that no API server has given it.
const staticPods = "/etc/kubernetes/manifests"

// staticPod has a pod whose object in the API has another UID than the runtime knows.
func staticPod(w *World) {
	n := w.Node(3)
	file := n.Root() + staticPods + "/" + w.NS + ".yaml"
	name := "static-" + n.Name
	put := func(generation int) corev1.Pod {
		tmp := n.Root() + staticPods + "/." + w.NS // the kubelet passes over what begins with a dot
		w.Must(os.WriteFile(tmp, fmt.Appendf(nil, staticManifest, w.NS, generation), 0o600))
		w.Must(os.Rename(tmp, file))
		return w.mirror(name, generation)
	}
	w.Cleanup(func() {
		w.Must(os.RemoveAll(file))
		w.Clear()
	})
	w.Step("a static pod starts on %s", n.Name)
	before := put(1)
	hash := before.Annotations["kubernetes.io/config.hash"]
	r := w.reservation(name, n)
	if r.Status.PodUID != hash || hash == string(before.UID) {
		w.Fatalf("its reservation is of %s, want %s; its object is %s", r.Status.PodUID, hash, before.UID)
	}
	w.Step("its sandbox is %s's, its object is %s; the annotation is changed", hash, before.UID)
	w.Kubectl("annotate", "--overwrite", "pod", name, Window+"=1h")
	w.windowBecomes(n, "1h0m0s")
	w.Step("its manifest changes: another pod takes its place")
	after := put(2)
	w.Kept(Pods{name: before}, Pods{name: after})
	w.Truth(n, soon, "it is back")
	w.Step("%s", w.SaidOf(after, "AddressKept", addresses(after)))
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

// mirror waits until the object that stands for a static pod is Ready in a generation, and the agent has said so.
func (w *World) mirror(name string, generation int) corev1.Pod {
	var found corev1.Pod
	w.Eventually(time.Minute, name+" is Ready", func() error {
		p, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errors.New("it is not there")
		}
		w.Must(err)
		if p.Annotations["generation"] != fmt.Sprint(generation) || !ready(*p) {
			return fmt.Errorf("generation %s is %s", p.Annotations["generation"], p.Status.Phase)
		}
		found = *p
		return nil
	})
	w.Eventually(10*time.Second, name+" is published", func() error {
		hash := found.Annotations["kubernetes.io/config.hash"]
		for _, r := range w.Reservations() {
			if r.Spec.PodName == name && r.Status.PodUID == hash {
				return nil
			}
		}
		return errors.New("it is not")
	})
	return found
}

// rights: who may see a namespace sees its reservations, and its administrators may give addresses up.
func (w *World) rights() {
	for role, want := range map[string]string{"view": "yes yes no no no", "edit": "yes yes no no no", "admin": "yes yes yes no no"} {
		w.Kubectl("create", "rolebinding", role, "--clusterrole="+role, "--user="+w.NS+"-"+role)
		var got string
		w.Eventually(10*time.Second, "the rights of "+role, func() error {
			var words []string
			for _, verb := range []string{"list", "watch", "patch", "delete"} {
				out, _ := w.kubectl("", "auth", "can-i", verb, "ipreservations.ipam.leasehold.dev", "--as="+w.NS+"-"+role)
				words = append(words, strings.TrimSpace(out))
			}
			out, _ := w.kubectl("", "auth", "can-i", "patch", "ipreservations.ipam.leasehold.dev", "--subresource=status", "--as="+w.NS+"-"+role)
			got = strings.Join(append(words, strings.TrimSpace(out)), " ")
			if got != want {
				return fmt.Errorf("to list, watch, patch and delete, and to patch the status: %s, want %s", got, want)
			}
			return nil
		})
		w.Step("%s may list, watch, patch and delete reservations, and patch their status: %s", role, got)
	}
}
