package scenarios

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// upgradeBase is the commit from which the scenario upgrade upgrades, and to which it goes back.
//
//go:embed upgrade-base
var upgradeBase string

// upgrade has the parts of two versions beside each other, in each order, and recreates the pods of
// a StatefulSet all the time. They keep their addresses, and the manager replaces none of them,
// because no version makes a pod wait for a node that accepts it.
func upgrade(t *Test) {
	base := t.versionOf(t.publishOf("v0.0.1", strings.TrimSpace(upgradeBase)))
	next := t.versionOf(t.publish("v0.2.0"))
	s := t.stockCluster()
	t.apply(base.all())
	s.removed = false
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	s.becomesActive(time.Now())
	s.rounds("with the base commit", 10)

	t.apply(next.crds)
	s.rounds("CRDs of this commit", 3)
	t.apply(base.crds, next.others, base.agents, next.manager)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	s.rounds("manager of this commit, agents and CRDs of the base commit", 5)
	t.apply(base.all())
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	s.rounds("back", 2)
	t.apply(next.crds, next.others, next.agents, base.manager)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	s.rounds("agents of this commit, manager of the base commit", 5)

	t.Kubectl("scale", "-n", cluster.System, "deployment/"+cluster.Manager, "--replicas=1")
	other := t.managerPod(next.manager)
	s.rounds("one manager of each commit", 5)
	t.removeSystemPod(other)
	s.whilePodsAreReplaced("the rest of the upgrade", func() error { return t.tryApply(next.all()) })
	s.whilePodsAreReplaced("the way back", func() error { return t.tryApply(base.all()) })
	s.whilePodsAreReplaced("the upgrade", func() error { return t.tryApply(next.all()) })
	s.replaced(0)
	s.remove()
	s.assertAsBefore()
}

// A version has the objects of a release's manifest.
type version struct{ crds, others, agents, manager string }

func (v version) all() string { return join(v.crds, v.others, v.agents, v.manager) }

func join(manifests ...string) string { return strings.Join(manifests, "\n---\n") }

// versionOf returns the objects of a release.
func (t *Test) versionOf(dir string) version {
	text, err := os.ReadFile(oneIn(t, dir, "leasehold-*-replace.yaml"))
	t.Must(err)
	return t.objectsOf(string(text))
}

// objectsOf returns the objects of a manifest.
func (t *Test) objectsOf(manifest string) (v version) {
	for _, object := range strings.Split(manifest, "\n---\n") {
		var kind metav1.TypeMeta
		t.Must(yaml.Unmarshal([]byte(object), &kind))
		to := &v.others
		switch kind.Kind {
		case "CustomResourceDefinition":
			to = &v.crds
		case "DaemonSet":
			to = &v.agents
		case "Deployment":
			to = &v.manager
		}
		*to = join(*to, object)
	}
	return v
}

func (t *Test) apply(manifests ...string) { t.Must(t.tryApply(manifests...)) }

func (t *Test) tryApply(manifests ...string) error {
	out, err := t.kubectl(join(manifests...), "apply", "--namespace="+cluster.System, "-f", "-")
	if err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	return nil
}

// rounds recreates the retained pods a number of times.
func (s *stockCluster) rounds(what string, n int) {
	longest := time.Duration(0)
	for range n {
		began := time.Now()
		s.Kept(s.pods, s.set.Recreate())
		longest = max(longest, time.Since(began))
	}
	s.Step("%s: %d recreations, the longest took %.1f s", what, n, longest.Seconds())
}

// managerPod starts a replica of another version's manager beside those of the Deployment.
func (t *Test) managerPod(manifest string) string {
	var d appsv1.Deployment
	t.Must(yaml.Unmarshal([]byte(manifest), &d))
	return t.systemPod(&corev1.Pod{Spec: d.Spec.Template.Spec, ObjectMeta: metav1.ObjectMeta{
		Name: "manager-of-the-other-version", Labels: d.Spec.Template.Labels}}).Name
}
