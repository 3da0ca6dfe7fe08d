package scenarios

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// The directories of k3s: docs/facts.md, "Distributions have directories of their own".
const (
	k3sData = "/var/lib/rancher/k3s/data"
	k3sBin  = k3sData + "/cni"
	k3sConf = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
)

// onK3s gives a node the directories of k3s, and does to them what k3s does when it starts and when
// it is upgraded. k3s itself does not run.
func onK3s(t *Test) {
	n := t.Node(3)
	back := t.WithoutAgent(n)
	conf := k3sConf + "/10-flannel.conflist"
	onNode := func(script string, args ...string) {
		t.Helper()
		t.exec(n, append([]string{"sh", "-ec", script, "sh"}, args...)...)
	}
	// k3s has all plugins in one program, to which the links of every release lead.
	release := func(name string) {
		onNode(`mkdir -p $1/$2/bin $1/cni
for plugin in bridge flannel host-local loopback portmap; do
	cp /opt/cni/bin/$plugin $1/$2/bin/
	rm -f $1/cni/$plugin
	ln -s $1/$2/bin/$plugin $1/cni/$plugin
done`, k3sData, name)
	}
	// As k3s writes it, or with a part for its option --flannel-cni-conf. The version is that of
	// the test cluster's flannel plugin, which has no bandwidth plugin beside it.
	configure := func(ipam string) {
		t.Must(os.MkdirAll(n.Root()+k3sConf, 0o755))
		t.Must(os.WriteFile(n.Root()+conf, []byte(t.manifest("k3s.conflist", "IPAM", ipam)), 0o600))
	}
	t.Cleanup(func() {
		t.Clear()
		t.Must(n.Stop(t.Ctx, cluster.ContainerRuntime))
		t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{}))
		onNode("rm -rf /var/lib/rancher")
		back()
	})

	release("first")
	configure(`"ipam": {"type": "leasehold"},`)
	agent := t.agentOf(n, "k3s", func(s *corev1.PodSpec) {
		s.InitContainers[0].Args = []string{"install", "--host-root=/proc/1/root", "--cni-bin-dir=" + k3sBin}
		s.InitContainers[0].RestartPolicy = nil
	})
	t.Must(n.Stop(t.Ctx, cluster.ContainerRuntime))
	t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{ConfDir: k3sConf, BinDir: k3sBin}))
	t.becomesActive(agent, "k3s was started with --flannel-cni-conf")
	set := t.Echoserver("echoserver", n, 1)
	pods := set.Ready()
	t.Kept(pods, set.Recreate())

	began := time.Now()
	configure("")
	t.Within(reportedWithin, "it is reported as K3sDefault", func() error {
		words := []string{conf, "--flannel-cni-conf"}
		return errors.Join(t.reported(n.Name, metav1.NamespaceDefault, began, "K3sDefault", words),
			t.reported("echoserver-0", t.NS, began, "K3sDefault", words))
	})
	t.Step("k3s was started without it: reported as K3sDefault after %.1f s", time.Since(began).Seconds())
	finds := func(want string) {
		out := t.exec(n, "sh", "-c", "$0 doctor --cni-conf-dir=$1 --cni-bin-dir=$2 || test $? = 1",
			t.Cluster.Leasectl(), k3sConf, k3sBin)
		if !strings.Contains(out, want) {
			t.Fatalf("leasectl doctor finds %s; want %q", out, want)
		}
		t.Step("leasectl doctor: %s", out)
	}
	finds("decide:  in which of the two ways leasehold is installed on k3s")

	upstream := func() string {
		target, _ := os.Readlink(n.Root() + k3sBin + "/" + original)
		return target
	}
	t.removeSystemPod(agent.Name)
	agent = t.agentOf(n, "k3s-replace", func(*corev1.PodSpec) {})
	t.becomesActive(agent, "the overlay is applied")
	finds("nothing was found")
	if to := upstream(); to != k3sData+"/first/bin/host-local" {
		t.Errorf("%s is a link to %q", original, to)
	}
	t.Kept(pods, set.Recreate())

	release("second")
	configure("")
	t.Becomes("leasehold is in host-local's place", k3sData+"/second/bin/host-local", func() any { return upstream() })
	t.becomesActive(agent, "k3s was upgraded")
	t.Kept(pods, set.Recreate())
	t.Clear()
	t.removeSystemPod(agent.Name)
}

// agentOf starts the pod of an overlay's DaemonSet on a node, with the images of the test cluster
// and a change.
func (t *Test) agentOf(n *cluster.Node, name string, change func(*corev1.PodSpec)) corev1.Pod {
	overlay := t.objectsOf(t.Kubectl("kustomize", filepath.Join(t.Cluster.Repo, "daemonset/overlays/k3s")))
	var ds appsv1.DaemonSet
	t.Must(yaml.Unmarshal([]byte(overlay.agents), &ds))
	spec := ds.Spec.Template.Spec
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			repository, _, _ := strings.Cut(containers[i].Image, ":")
			containers[i].Image = repository + ":test"
		}
	}
	spec.NodeName = n.Name
	change(&spec)
	return t.systemPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// becomesActive waits until an agent's metric says that leasehold is in use.
func (t *Test) becomesActive(agent corev1.Pod, what string) {
	began := time.Now()
	t.Until("leasehold is in use", func() bool {
		return t.metrics(agent, agentMetrics).Sum("leasehold_retention_active") > 0
	})
	t.Step("%s: in use after %.1f s", what, time.Since(began).Seconds())
}
