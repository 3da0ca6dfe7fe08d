package scenarios

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

const (
	cniConf = "/etc/cni/net.d"
	cniBin  = "/opt/cni/bin"
	// reportedWithin is how long it may take until a node that retains no addresses is reported.
	reportedWithin = time.Minute

	flannelNamespace = "kube-flannel"
	flannelConflist  = cniConf + "/10-flannel.conflist"
	hostLocal        = cniBin + "/host-local"
	original         = "host-local.original" // what the installer keeps
)

// installReplace follows the quick start of README.md in a cluster with a stock network and running
// pods, takes leasehold out of use, upgrades it, rolls it back and removes it again.
func installReplace(t *Test) {
	former, next := t.publish("v0.1.0"), t.publish("v0.2.0")
	s := t.stockCluster()
	t.follow(page{"README.md", "## Quick start in a cluster", []string{"-f dist/", "-f " + former + "/"},
		t.set("echoserver", 2), func(command string, called time.Time) {
			if strings.HasPrefix(command, "kubectl apply") {
				s.becomesActive(called)
			}
		}})
	t.Kept(s.pods, s.set.Recreate())
	t.clusterDoctor().healthy()
	t.Step("recreated pods keep their addresses, which host-local gave, and doctor finds nothing")
	out, err := t.tryLeasehold("install", "--yes")
	if s.network.Type == "flannel" && (err == nil || !strings.Contains(out, "takes host-local's place")) {
		t.Errorf("kubectl leasehold install has not failed, or for another reason")
	}

	t.Step("the network plugin is installed again, and restarted")
	s.applyNetwork()
	s.becomesActive(time.Now())
	t.Kept(s.pods, s.set.Recreate())

	n := t.Node(1)
	began := time.Now()
	t.put(n, t.Cluster.Upstream("host-local"), hostLocal)
	t.Until("leasehold is back", func() bool { return t.filesOf(n)[hostLocal] != s.files[0][hostLocal] })
	t.Step("host-local is installed again, as by a package: leasehold is in its place again after %.1f s",
		time.Since(began).Seconds())
	t.Kept(s.pods, s.set.Recreate())

	apply := func(release string) func() error {
		manifest, err := os.ReadFile(oneIn(t, release, "leasehold-*-replace.yaml"))
		t.Must(err)
		return func() error { return t.tryApply(string(manifest)) }
	}
	s.upgradeAndBack(apply(next), apply(former))
	t.Step("one address is held")
	s.set.Scale(s.set.size - 1)
	s.remove()
	s.assertAsBefore()
}

// assertAsBefore checks that leasehold has left nothing on any node, and that pods get their
// addresses from host-local.
func (s *stockCluster) assertAsBefore() {
	for i, n := range s.ownNodes() {
		s.assertSameFiles(i, n)
	}
	s.assertUndisturbed()
	s.assertHostLocalWorks()
}

// installNamed follows the page for kubeadm with flannel, where `kubectl leasehold install` names
// leasehold in flannel's ConfigMap.
func installNamed(t *Test) {
	release := t.publish("v0.1.0")
	s := t.stockCluster()
	config := func() string {
		return t.Kubectl("get", "configmap", "-n", flannelNamespace, "kube-flannel-cfg", "-o",
			"jsonpath={.data}{.metadata.annotations}")
	}
	stock, example := config(), t.set("echoserver", 2)
	manifest := oneIn(t, release, "leasehold-*-named.yaml")
	t.follow(page{"docs/recipes/kubeadm.md", "", []string{"dist/dev/named.yaml", manifest}, example,
		func(command string, called time.Time) {
			switch {
			case strings.Contains(command, "rollout status deployment"):
				t.leasehold("install")
				if now := config(); now != stock {
					t.Errorf("install without an answer has changed %s into %s", stock, now)
				}
			case strings.HasPrefix(command, "kubectl leasehold install"):
				s.becomesActive(called)
			}
		}})
	example.Scale(0)
	t.Kept(s.pods, s.set.Recreate())
	t.Step("recreated pods keep their addresses; flannel's DEL of those that were there before calls host-local")
	t.Kept(s.pods, s.set.Recreate())

	d := t.clusterDoctor()
	t.Step("flannel's manifest is applied again, then its DaemonSet restarted")
	began := time.Now()
	s.applyManifest()
	d.decide("FlannelConfigMap")
	s.restartFlannel()
	s.becomesReported(began, t.nodes, "FlannelDefault", flannelConflist, "kube-flannel-cfg")
	s.pods = s.set.Recreate()
	t.Step("host-local has served ADDs meanwhile")
	d.decide("FlannelDefault")
	t.leasehold("install", "--yes")
	s.becomesActive(time.Now())
	t.Kept(s.pods, s.set.Recreate())

	n := t.Node(1)
	t.Step("host-local is copied over leasehold on %s", n.Name)
	began = time.Now()
	t.exec(n, "cp", "-f", hostLocal, cniBin+"/leasehold")
	s.becomesReported(began, t.nodes[:1], "BinaryReplaced", flannelConflist, cniBin+"/leasehold")
	d.repair("BinaryReplaced")
	s.becomesActive(time.Now())
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	t.Kept(s.pods, s.set.Recreate())

	t.Step("the configuration of %s is removed", n.Name)
	t.Must(os.Remove(n.Root() + flannelConflist))
	d.decide("NoConfiguration")
	t.Kubectl("rollout", "restart", "-n", flannelNamespace, "daemonset/kube-flannel-ds")
	s.becomesActive(time.Now())
	t.Kept(s.pods, s.set.Recreate())

	t.Step("two addresses are held; the third is in use by a pod whose configuration names leasehold")
	s.set.Scale(1)
	stays := s.set.Ready()
	s.remove()
	if now := config(); now != stock {
		t.Errorf("uninstall has left %s, and it was %s", now, stock)
	}
	kinds := "ns,crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingadmissionpolicy," +
		"validatingadmissionpolicybinding"
	if left := t.Kubectl("get", kinds, "-o", "name"); strings.Contains(left, "leasehold") {
		t.Errorf("uninstall has left objects: %s", left)
	}
	// The pod's DEL calls leasehold. So may DELs that the runtime refused for a moment after the
	// configuration was written anew, and that the kubelet repeats.
	const forwarder = cniBin + "/leasehold"
	on := t.NodeOf(stays["retained-0"])
	if _, err := os.Stat(on.Disk(forwarder)); err != nil {
		t.Errorf("the pod's DEL calls no program: %v", err)
	}
	for i, n := range t.ownNodes() {
		if now, found := t.filesOf(n)[forwarder]; found {
			s.files[i][forwarder] = now
		}
		s.assertSameFiles(i, n)
	}
	s.assertUndisturbed()
	t.untouched(stays, s.set.Ready())
	s.set.Scale(0)
	s.becomesGone(on, forwarder)
	s.assertHostLocalWorks()
}

// becomesGone waits until a file of a node is removed.
func (t *Test) becomesGone(n *cluster.Node, path string) {
	t.Until(path+" of "+n.Name+" is gone", func() bool {
		_, err := os.Lstat(n.Disk(path))
		return os.IsNotExist(err)
	})
}

// installAlone installs the plugin alone on each node, as README.md does, and removes it again.
// Without a manager pods return to their nodes only if the others are taken: one after the other.
func installAlone(t *Test) {
	s := t.stockCluster()
	path, err := t.Cluster.Build(t.Ctx, cluster.Program{Module: ".", Package: "plugins/ipam/leasehold"})
	t.Must(err)
	program, err := os.ReadFile(path)
	t.Must(err)
	for _, n := range t.ownNodes() {
		t.Must(os.WriteFile(n.Root()+cniBin+"/leasehold", program, 0o755))
	}
	leasectl := func(args ...string) {
		for _, n := range t.ownNodes() {
			out := t.exec(n, append([]string{t.Cluster.Leasectl()}, args...)...)
			t.Step("leasectl %s: %s", strings.Join(args, " "), out)
		}
	}
	leasectl("install", "--conf="+s.conf(), "--pod-annotations", "--yes")
	leasectl("install", "--conf="+s.conf(), "--yes")
	s.pods = s.set.Rollout() // host-local serves the DELs of the pods that ran, so no address of theirs is known
	t.Kept(s.pods, s.set.Rollout())
	if s.network.Type == cluster.KubeRouter {
		t.Step("kube-router is restarted")
		s.applyNetwork()
		t.Kept(s.pods, s.set.Rollout())
	}
	stays := s.set.Ready()
	leasectl("uninstall", "--yes")
	s.assertUndisturbed()
	t.untouched(stays, s.set.Ready())
	s.set.Scale(0)
	if s.network.Type != "flannel" { // containerd replays no configuration for the DEL (docs/install.md, "Remove")
		leasectl("uninstall", "--yes")
	}
	for _, n := range t.ownNodes() {
		s.becomesGone(n, cniBin+"/leasehold")
	}
	s.assertHostLocalWorks()
}

// uninstallAsks removes leasehold from a cluster in which a node has no power at first: nothing
// changes meanwhile. Then a configuration that was edited by hand is put back.
func uninstallAsks(t *Test) {
	s := t.stockCluster()
	s.failures() // the probes end, because a node loses power
	t.Must(t.Cluster.Apply(t.Ctx))
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	edited, down := t.Node(1), t.Node(3)
	conf := edited.Root() + flannelConflist
	stock, err := os.ReadFile(conf)
	t.Must(err)
	t.Step("leasehold is named by hand in flannel's configuration on %s, and pods start", edited.Name)
	t.Must(os.WriteFile(conf, bytes.Replace(stock, []byte(`"type": "flannel",`),
		[]byte(`"type": "flannel", "ipam": {"type": "leasehold"},`), 1), 0o644))
	t.becomesActive(t.Agent(edited), "it is named")
	s.set.Recreate()

	t.Step("%s loses power", down.Name)
	t.powerOff(down)
	t.waitNotReady(down)
	s.uninstallFails(down.Name + ": kubectl ")
	t.powerOn(down)
	t.Eventually("the agent of "+down.Name+" runs again", func() error {
		_, err := t.kubectl("", "exec", "--namespace="+cluster.System, t.Agent(down).Name, "--", "/leasectl",
			"--version")
		return err
	})

	before := s.set.Ready()
	t.Step("nobody answers whether leasehold is to be removed")
	for flag, words := range map[string][]string{
		"--crds":    {"the answer was not yes", "held addresses that are lost on all nodes: 0"},
		"--dry-run": {flannelConflist + " names host-local", "addresses in use: "},
	} {
		if out, err := t.tryLeasehold("uninstall", flag); (err == nil) != (flag == "--dry-run") ||
			!containsAll(out, words) {
			t.Errorf("it does not print %q: %v", words, err)
		}
	}
	t.Kubectl("get", "mutatingwebhookconfiguration", cluster.Manager)
	s.remove()
	if now, err := os.ReadFile(conf); err != nil || !bytes.Equal(now, stock) {
		t.Errorf("%s is %s, %v; want %s", flannelConflist, now, err, stock)
	}
	t.untouched(before, s.set.Ready())
	t.Step("pods that were started with leasehold end")
	s.set.Scale(0)
	s.assertHostLocalWorks()
	s.becomesGone(edited, cniBin+"/leasehold")
}

// uninstallFails runs kubectl leasehold uninstall, which has to print the words of an error and to
// change nothing.
func (s *stockCluster) uninstallFails(words ...string) {
	if out, err := s.tryLeasehold("uninstall", "--yes"); err == nil ||
		!containsAll(out, append(words, "nothing was removed")) {
		s.Fatalf("it has succeeded, or does not print %q", words)
	}
	s.Kubectl("get", "mutatingwebhookconfiguration", cluster.Manager)
	s.Kubectl("get", "-n", cluster.System, "daemonset", cluster.Agent)
	if replicas := s.Kubectl("get", "-n", cluster.System, "deployment", cluster.Manager, "-o",
		"jsonpath={.spec.replicas}"); replicas != "2" {
		s.Errorf("the manager has %s replicas", replicas)
	}
}

// A stockCluster is a cluster with a network plugin as it is installed without leasehold and with
// running pods, into which leasehold is installed and from which it is removed. If the cluster's
// plugin has no way of its own to be installed, it is flannel.
type stockCluster struct {
	*Test
	network  cluster.Network
	set      *Set // retained pods
	pods     Pods // of set
	plain    []*Set
	others   []Pods              // of plain, as they were
	files    []map[string]string // of each node, as they were
	failures func() []string
	removed  bool
}

// stockCluster replaces the cluster's configuration by the stock one, removes leasehold, and starts
// pods.
func (t *Test) stockCluster() *stockCluster {
	s := &stockCluster{Test: t, network: t.Node(1).DefaultNetwork()}
	if t.Cluster.CNI != cluster.KubeRouter && t.Cluster.CNI != "kind" {
		s.network.Type, s.network.Name = "flannel", "cbr0"
	}
	s.network.Stock = true
	t.Cleanup(s.restore)
	for _, n := range t.ownNodes() {
		if t.Cluster.CNI == cluster.KubeRouter { // whose list is written only where it is missing
			t.Must(os.Remove(n.Root() + s.conf()))
		}
	}
	s.applyNetwork()
	for _, n := range t.ownNodes() {
		conf, err := filepath.Glob(n.Root() + cniConf + "/*")
		t.Must(err)
		for _, c := range conf {
			if filepath.Base(c) != filepath.Base(s.conf()) {
				t.Must(os.Remove(c))
			}
		}
		stock, err := os.ReadFile(n.Root() + s.conf())
		t.Must(err)
		t.Must(n.WaitLoaded(t.Ctx, s.network.Name, string(stock)))
	}
	s.remove()
	s.removed = false
	for _, n := range t.ownNodes() {
		// Pods that were started before leasehold was on the node have left flannel's files, for
		// which the link is kept.
		t.exec(n, "sh", "-c", "rm -rf /var/lib/cni/flannel/* "+cniBin+"/leasehold")
		t.Must(n.UseRegistry(t.Ctx, t.publisher.addr))
	}
	t.Step("pods start with stock %s", s.network.Type)
	s.set = t.Echoserver("retained", nil, min(3, len(t.nodes)), KeptFor("10"), apart)
	s.pods = s.set.Ready()
	for i, n := range t.ownNodes() {
		s.plain = append(s.plain, t.Echoserver(fmt.Sprintf("plain-%d", i+1), n, 2, KeptFor("")))
	}
	for _, plain := range s.plain {
		s.others = append(s.others, plain.Ready())
		s.files = append(s.files, t.filesOf(plain.Node))
	}
	s.failures = t.probe(s.plain, s.others)
	return s
}

// apart keeps the pods of a template on different nodes.
func apart(template *corev1.PodTemplateSpec) {
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: template.Labels}, TopologyKey: corev1.LabelHostname}}}}
}

// conf returns the path of the network's configuration.
func (s *stockCluster) conf() string {
	if s.network.Type == "flannel" {
		return flannelConflist
	}
	return s.network.Path(0)
}

// applyNetwork installs the network plugin, restarts its programs, and waits until they have
// written their configuration.
func (s *stockCluster) applyNetwork() {
	switch s.network.Type {
	case "flannel":
		s.applyManifest()
		s.restartFlannel()
	case cluster.KubeRouter:
		for _, n := range s.ownNodes() {
			s.Must(n.Stop(s.Ctx, cluster.KubeRouter))
			s.Must(n.StartKubeRouter(s.Ctx))
			s.Until("kube-router has added the subnet", func() bool {
				list, err := os.ReadFile(n.Root() + s.conf())
				return err == nil && bytes.Contains(list, []byte(n.DefaultNetwork().Subnets[0].String()))
			})
		}
	case "kind": // kindnetd writes its list when it starts
		for _, n := range s.ownNodes() {
			network := n.DefaultNetwork()
			network.Stock = true
			list, err := network.Conflist()
			s.Must(err)
			s.Must(os.WriteFile(n.Root()+s.conf(), []byte(list), 0o644))
		}
	}
}

func (s *stockCluster) applyManifest() {
	manifest, err := s.Cluster.FlannelManifest()
	s.Must(err)
	s.KubectlWith(manifest, "apply", "-n", flannelNamespace, "-f", "-")
}

func (s *stockCluster) restartFlannel() {
	s.Kubectl("rollout", "restart", "-n", flannelNamespace, "daemonset/kube-flannel-ds")
	s.Kubectl("rollout", "status", "-n", flannelNamespace, "daemonset/kube-flannel-ds", "--timeout=5m")
}

// remove removes leasehold from the cluster as a user does.
func (s *stockCluster) remove() {
	s.leasehold("uninstall", "--crds", "--yes")
	s.removed = true
}

// restore deploys leasehold as all other scenarios expect it.
func (s *stockCluster) restore() {
	if agents, err := s.Client.AppsV1().DaemonSets(cluster.System).List(s.Ctx, metav1.ListOptions{}); err != nil ||
		len(agents.Items) > 0 && !s.removed {
		s.Must(err)
		s.leasehold("uninstall", "--crds", "--yes")
	}
	s.Kubectl("delete", "--ignore-not-found", "namespace", flannelNamespace)
	s.Kubectl("delete", "--ignore-not-found", "clusterrole,clusterrolebinding", "flannel")
	s.Must(s.Cluster.Apply(s.Ctx))
	s.Must(s.Cluster.WaitDeployed(s.Ctx))
	for _, n := range s.ownNodes() {
		s.Must(n.SetNetworks(s.Ctx, n.DefaultNetwork()))
	}
}

// leasehold runs kubectl leasehold install or uninstall, and returns what it prints.
func (t *Test) leasehold(args ...string) string {
	out, err := t.tryLeasehold(args...)
	t.Must(err)
	return out
}

func (t *Test) tryLeasehold(args ...string) (string, error) {
	out, err := t.shell(t.TempDir(), "kubectl leasehold "+strings.Join(args, " ")+" --timeout=2m")
	t.Step("kubectl leasehold %s: %v\n%s", strings.Join(args, " "), err, out)
	return out, err
}

// becomesActive waits until the NodeAddressPools of all nodes say that leasehold is in use.
func (s *stockCluster) becomesActive(since time.Time) {
	for _, n := range s.ownNodes() {
		s.retentionIs(n, "True", 5*time.Minute)
	}
	s.Step("leasehold is in use on all nodes after %.1f s", time.Since(since).Seconds())
}

// retentionActive returns the status of the condition of a node's NodeAddressPool, and the reason
// unless it is true.
func (t *Test) retentionActive(node string) (string, error) {
	out, err := t.kubectl("", "get", "nap", node, "-o",
		`jsonpath={range .status.conditions[?(@.type=="RetentionActive")]}{.status} {.reason}{end}`)
	if status, _, _ := strings.Cut(out, " "); status == "True" {
		return status, err
	}
	return out, err
}

// reported returns an error if no Event about a node or pod says since a moment that addresses are
// not retained, for the reason and with the words.
func (t *Test) reported(name, namespace string, since time.Time, reason string, words []string) error {
	events := t.events(namespace, "reason=RetentionInactive,involvedObject.name="+name)
	words = append(slices.Clone(words), "not retained: "+reason+": ")
	if slices.ContainsFunc(events, func(e corev1.Event) bool {
		return !e.EventTime.Time.Before(since) && containsAll(e.Message, words)
	}) {
		return nil
	}
	return fmt.Errorf("%s: the Events %q", name, messages(events))
}

// becomesReported waits until nodes and their retained pods have Events with a reason, which are
// not older than a moment, and their NodeAddressPools have it too.
func (s *stockCluster) becomesReported(since time.Time, nodes []string, reason string, words ...string) {
	pods := s.set.Pods()
	s.Within(reportedWithin, "it is reported as "+reason, func() error {
		var errs []error
		for _, name := range nodes {
			errs = append(errs, s.reported(name, metav1.NamespaceDefault, since, reason, words))
			if is, err := s.retentionActive(name); err != nil || is != "False "+reason {
				errs = append(errs, fmt.Errorf("the NodeAddressPool of %s says %s, %w", name, is, err))
			}
		}
		for _, p := range pods {
			if slices.Contains(nodes, p.Spec.NodeName) {
				errs = append(errs, s.reported(p.Name, s.NS, since, reason, words))
			}
		}
		return errors.Join(errs...)
	})
	s.Step("reported as %s after %.1f s, on nodes, pods and NodeAddressPools", reason, time.Since(since).Seconds())
}

// filesOf returns what is in the directories of a node that a pod may have written to: for each
// file its mode and digest, for each link its target. The files of the runtime, the kubelet and CNI
// plugins, which change with the pods, are left out, and those of flannel's pods.
func (t *Test) filesOf(n *cluster.Node) map[string]string {
	out := t.exec(n, "bash", "-c", `
files() { find /etc /opt /run /var/lib /var/log /usr/libexec/cni -regextype posix-extended \
	-regex '/run/(cni-ipam-state|containerd|containers|crio|(ipc|net|uts)ns|runc|e2e|services)|/var/lib/(cni|containerd|containers|crio|kubelet)|/var/log/(containers|crio|pods)' -prune -o "$@"; }
{ files -type f -exec sha256sum {} +; files -printf '%M%l  %p\n'; } 2>/dev/null || true`)
	files := map[string]string{}
	for line := range strings.Lines(out) {
		what, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		files[path] += " " + what
	}
	return files
}

// assertSameFiles checks that the files of the i-th node, counted from 0, are what they were.
func (s *stockCluster) assertSameFiles(i int, n *cluster.Node) {
	now, all := s.filesOf(n), maps.Clone(s.files[i])
	maps.Copy(all, now)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if was := s.files[i][path]; was != now[path] {
			s.Errorf("%s of %s was %q and is %q", path, n.Name, was, now[path])
		}
	}
	s.Step("%d files of %s are compared", len(now), n.Name)
}

// assertUndisturbed ends the probes, and checks that the pods which nobody has replaced are as they
// were.
func (s *stockCluster) assertUndisturbed() {
	failed := s.failures()
	if len(failed) > 0 {
		s.Errorf("%d probes of pods that were not touched failed: %s", len(failed), strings.Join(failed, "; "))
	}
	for i, plain := range s.plain {
		s.untouched(s.others[i], plain.Ready())
	}
}

// untouched fails the scenario for each pod that was replaced or restarted, or has another address.
func (t *Test) untouched(before, after Pods) {
	for name, p := range after {
		old := before[name]
		if p.UID != old.UID || addresses(p) != addresses(old) || restarts(p) != restarts(old) {
			t.Errorf("%s was %s at %s and is %s at %s, restarted %d times", name, old.UID, addresses(old), p.UID,
				addresses(p), restarts(p))
		}
	}
}

// assertHostLocalWorks starts 20 pods, and checks that host-local's files are those of the pods
// that have addresses, and no others.
func (s *stockCluster) assertHostLocalWorks() {
	began := time.Now()
	s.Echoserver("next", nil, 20, KeptFor("")).Ready()
	s.Step("20 pods have got their addresses of host-local after %.1f s", time.Since(began).Seconds())
	s.Eventually("host-local's files are those of the pods", func() error {
		pods, err := s.Client.CoreV1().Pods("").List(s.Ctx, metav1.ListOptions{})
		s.Must(err)
		for _, n := range s.ownNodes() {
			files := map[string]string{}
			paths, err := filepath.Glob(filepath.Join(n.Root(), s.network.DataDir(), s.network.Name, "*"))
			s.Must(err)
			for _, path := range paths {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				files[filepath.Base(path)] = string(content)
			}
			delete(files, "lock")
			delete(files, "last_reserved_ip.0")
			for _, p := range pods.Items {
				if p.Spec.NodeName != n.Name || p.Spec.HostNetwork || p.Status.PodIP == "" {
					continue
				}
				content, found := files[p.Status.PodIP]
				if !found || strings.HasPrefix(content, "#") {
					return fmt.Errorf("%s of %s has no file, or is another pod's as well: %q", p.Status.PodIP, p.Name,
						content)
				}
				delete(files, p.Status.PodIP)
			}
			for name, content := range files {
				id, _, _ := strings.Cut(content, "\r")
				return fmt.Errorf("%s of %s is no pod's: %q\n%s", name, n.Name, content, s.logged(n.Name, id))
			}
		}
		return nil
	})
	s.Step("host-local's files are those of the pods")
	s.Clear()
}

// logged returns the lines of a node's runtime and kubelet that contain a word.
func (t *Test) logged(node, word string) string {
	out, err := exec.CommandContext(t.Ctx, "grep", "-hF", "--", word, t.Cluster.Log(node, cluster.ContainerRuntime),
		t.Cluster.Log(node, cluster.Kubelet)).Output()
	if err != nil {
		return err.Error() // no line has it
	}
	return string(out)
}

// probe has one of two pods connect to the other on each node, several times a second, until the
// returned function is called, which says when that failed: at once, or because there was no answer
// for longer than a busy machine takes.
func (t *Test) probe(sets []*Set, pods []Pods) (failures func() []string) {
	var mu sync.Mutex
	var failed []string
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i, set := range sets {
		from, to := pods[i][set.Name+"-0"], pods[i][set.Name+"-1"]
		ns, addr := t.Sandbox(set.Node, from).NetNS, net.JoinHostPort(to.Status.PodIP, "8080")
		wg.Go(func() {
			for {
				began := time.Now()
				if err := get(ns, addr, time.Minute); err != nil {
					mu.Lock()
					failed = append(failed, fmt.Sprintf("%s %s: %v after %.2f s", began.Format("15:04:05"), addr, err,
						time.Since(began).Seconds()))
					mu.Unlock()
				}
				select {
				case <-done:
					return
				case <-time.After(250 * time.Millisecond):
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(done); wg.Wait() })
	t.Cleanup(stop)
	return func() []string { stop(); return failed }
}

// restarts counts the restarts of a pod's containers.
func restarts(p corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}
