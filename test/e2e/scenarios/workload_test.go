package scenarios

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// Window is the annotation with the window.
const Window = "io.kubernetes.cri/reserved-ip-duration"

// Pods are the pods of a workload by name.
type Pods map[string]corev1.Pod

// An Option changes a pod template.
type Option func(*corev1.PodTemplateSpec)

// KeptFor sets the window; empty removes the annotation.
func KeptFor(window string) Option {
	return func(template *corev1.PodTemplateSpec) {
		delete(template.Annotations, Window)
		if window != "" {
			template.Annotations[Window] = window
		}
	}
}

// Stubborn pods ignore SIGTERM and are killed after their grace period.
func Stubborn(grace time.Duration) Option {
	return func(template *corev1.PodTemplateSpec) {
		seconds := int64(grace.Seconds())
		template.Spec.TerminationGracePeriodSeconds = &seconds
		template.Spec.Containers[0].Env = append(template.Spec.Containers[0].Env,
			corev1.EnvVar{Name: "STUBBORN", Value: "1"})
	}
}

// on makes a template's pods run on one node only.
func on(n *cluster.Node) Option {
	return func(template *corev1.PodTemplateSpec) {
		template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{named(n)}}}}
	}
}

// named selects a node.
func named(n *cluster.Node) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n.Name}}}}
}

// Set is a running StatefulSet or Deployment.
type Set struct {
	t          *Test
	Name       string
	Node       *cluster.Node
	size       int
	deployment bool
}

// Echoserver creates the documented echoserver with a name, on one node or, with nil, on any, and
// waits until it runs.
func (t *Test) Echoserver(name string, n *cluster.Node, replicas int, options ...Option) *Set {
	set := t.echoserver(name, n, replicas, options...)
	_, err := t.Client.AppsV1().StatefulSets(t.NS).Create(t.Ctx, &set, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(t.Clear)
	s := &Set{t: t, Name: name, Node: n, size: replicas}
	s.Ready()
	return s
}

func (t *Test) echoserver(name string, n *cluster.Node, replicas int, options ...Option) appsv1.StatefulSet {
	var set appsv1.StatefulSet
	t.Must(yaml.UnmarshalStrict([]byte(t.manifest("echoserver.yaml")), &set))
	count := int32(replicas)
	set.Name, set.Spec.ServiceName, set.Spec.Replicas = name, name, &count
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	set.Spec.Selector.MatchLabels["app"] = name
	set.Spec.Template.Labels["app"] = name
	if n != nil {
		options = append(options, on(n))
	}
	for _, o := range options {
		o(&set.Spec.Template)
	}
	return set
}

// Deployment creates pods whose names are not used again, without a window unless an option sets
// one, and does not wait for them.
func (t *Test) Deployment(name string, n *cluster.Node, replicas int, options ...Option) *Set {
	return t.deployment(name, n, replicas, appsv1.DeploymentStrategy{}, append([]Option{KeptFor("")}, options...)...)
}

func (t *Test) deployment(name string, n *cluster.Node, replicas int, strategy appsv1.DeploymentStrategy,
	options ...Option) *Set {
	spec := t.echoserver(name, n, replicas, options...).Spec
	_, err := t.Client.AppsV1().Deployments(t.NS).Create(t.Ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: spec.Replicas,
			Selector: spec.Selector, Template: spec.Template, Strategy: strategy}}, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(t.Clear)
	return &Set{t: t, Name: name, Node: n, size: replicas, deployment: true}
}

// bare returns an echoserver without a controller.
func (t *Test) bare(name string, n *cluster.Node, options ...Option) *corev1.Pod {
	template := t.echoserver(name, n, 1, options...).Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name = name
	return pod
}

// createPod creates a pod. With dryRun, the API server only does as if.
func (t *Test) createPod(pod *corev1.Pod, dryRun ...string) *corev1.Pod {
	created, err := t.Client.CoreV1().Pods(t.NS).Create(t.Ctx, pod.DeepCopy(), metav1.CreateOptions{DryRun: dryRun})
	t.Must(err)
	return created
}

// Pods lists the workload's pods that are not being deleted. On a busy machine the API server may
// not answer in time.
func (s *Set) Pods() Pods {
	var list *corev1.PodList
	s.t.Eventually("the pods are listed", func() (err error) {
		list, err = s.t.Client.CoreV1().Pods(s.t.NS).List(s.t.Ctx, metav1.ListOptions{LabelSelector: "app=" + s.Name})
		return err
	})
	pods := Pods{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			pods[p.Name] = p
		}
	}
	return pods
}

// Ready waits until as many pods as there should be are Ready, and returns them.
func (s *Set) Ready() Pods { return s.ReadyBut(nil) }

// ReadyBut is Ready for pods that replace others: none of the old ones counts.
func (s *Set) ReadyBut(old Pods) Pods { return s.readyWithin(5*time.Minute, old) }

func (s *Set) readyWithin(limit time.Duration, old Pods) Pods {
	var pods Pods
	s.t.Within(limit, s.Name+" is ready", func() error {
		pods = s.Pods()
		for name, p := range pods {
			if p.UID == old[name].UID {
				return fmt.Errorf("%s is still the old one", name)
			}
			if !ready(p) {
				return fmt.Errorf("%s is %s", name, p.Status.Phase)
			}
		}
		if len(pods) != s.size {
			return fmt.Errorf("%d of %d pods", len(pods), s.size)
		}
		return nil
	})
	return pods
}

// Restarted waits until the API shows that the containers of all pods were restarted, and returns
// the pods. Until then it shows the addresses of the former sandboxes.
func (s *Set) Restarted(before Pods) Pods {
	s.t.Helper()
	var after Pods
	s.t.Eventually(s.Name+" runs again", func() error {
		after = s.Pods()
		for name, old := range before {
			p := after[name]
			if p.UID != old.UID {
				s.t.Fatalf("%s was replaced", name)
			}
			if !ready(p) || p.Status.ContainerStatuses[0].RestartCount == 0 {
				return fmt.Errorf("%s does not", name)
			}
		}
		return nil
	})
	return after
}

func ready(p corev1.Pod) bool {
	return readiness(p).Status == corev1.ConditionTrue && len(p.Status.PodIPs) > 0
}

// readiness returns the condition Ready of a pod, empty if it has none.
func readiness(p corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{}
}

// patch changes the workload by a strategic merge patch.
func (s *Set) patch(format string, args ...any) {
	resource := "statefulsets"
	if s.deployment {
		resource = "deployments"
	}
	s.t.Must(s.t.Client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(s.t.NS).Resource(resource).
		Name(s.Name).Body(fmt.Appendf(nil, format, args...)).Do(s.t.Ctx).Error())
}

// Resize sets the size and does not wait.
func (s *Set) Resize(size int) {
	s.patch(`{"spec":{"replicas":%d}}`, size)
	s.size = size
}

// Scale sets the size; going down, it waits until the surplus pods are gone.
func (s *Set) Scale(size int) {
	shrinks := size < s.size
	s.Resize(size)
	if !shrinks {
		return
	}
	s.t.Until(s.Name+" shrinks", func() bool {
		list, err := s.t.Client.CoreV1().Pods(s.t.NS).List(s.t.Ctx, metav1.ListOptions{LabelSelector: "app=" + s.Name})
		return err == nil && len(list.Items) <= size
	})
}

// Delete deletes pods as `kubectl delete pod` does, without waiting.
func (s *Set) Delete(pods Pods) {
	for name := range pods {
		err := s.t.Client.CoreV1().Pods(s.t.NS).Delete(s.t.Ctx, name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			s.t.Must(err)
		}
	}
}

// forceDelete removes the objects of pods at once, whatever their containers do. Those that have
// been replaced meanwhile are left alone.
func (t *Test) forceDelete(pods Pods) {
	now := int64(0)
	for name, p := range pods {
		err := t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now,
			Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Must(err)
		}
	}
}

// Recreate deletes all pods and waits for their successors.
func (s *Set) Recreate() Pods {
	old := s.Ready()
	s.Delete(old)
	return s.ReadyBut(old)
}

// Rollout changes the template and waits until every pod has been replaced.
func (s *Set) Rollout() Pods {
	old := s.Ready()
	s.changeTemplate()
	return s.ReadyBut(old)
}

func (s *Set) changeTemplate() {
	s.patch(`{"spec":{"template":{"metadata":{"annotations":{"rollout":%q}}}}}`, time.Now())
}
