package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
	"github.com/leasehold-cni/leasehold/test/e2e/permissions"
)

// CheckDeploy verifies the manifests in daemonset/ and each of its overlays with an API server
// without nodes: all fields are known, the CRDs are established, the expressions of the policies
// pass type checking, the writes of the table in test/e2e/permissions are allowed and refused, all
// images are built by the project and pulled by no node, they have the privileges that SECURITY.md
// says, the directories of the nodes are those of docs/facts.md, and everything can be deleted.
func (c *Cluster) CheckDeploy(ctx context.Context) error {
	if err := c.UpControl(ctx); err != nil {
		return err
	}
	return errors.Join(c.checkDeploy(ctx), c.Down(context.WithoutCancel(ctx)))
}

func (c *Cluster) checkDeploy(ctx context.Context) error {
	base := filepath.Join(c.Repo, "daemonset")
	overlays, err := filepath.Glob(filepath.Join(base, "overlays/*"))
	if err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, dir := range append([]string{base}, overlays...) {
		if err := c.checkManifests(ctx, client, dir); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if err := c.checkComponents(ctx, client, base); err != nil {
		return fmt.Errorf("components: %w", err)
	}
	c.logf("checking policies")
	if err := checkPolicies(ctx, client); err != nil {
		return err
	}
	config, err := c.clientConfig()
	if err != nil {
		return err
	}
	c.logf("trying writes of all accounts")
	fixture := filepath.Join(c.Repo, "test/e2e/permissions/fixture.yaml")
	err = machine.Poll(ctx, time.Minute, func() error { // a namespace's service account may be too new
		return run(ctx, c.kubectl("apply", "-f", fixture)...)
	})
	if err := cmp.Or(err, permissions.Check(ctx, config, c.logf)); err != nil {
		return err
	}
	err = run(ctx, c.kubectl("delete", "-f", fixture, "--force", "--ignore-not-found", "--wait=false")...)
	if err != nil {
		return err
	}
	c.logf("applying it again, then deleting it")
	for _, args := range [][]string{
		{"apply", "--validate=strict", "-k", base},
		{"delete", "-k", base, "--timeout=1m"},
	} {
		if err := run(ctx, c.kubectl(args...)...); err != nil {
			return err
		}
	}
	return nil
}

// checkComponents applies the components with an overlay, and removes what they have added.
func (c *Cluster) checkComponents(ctx context.Context, client *kubernetes.Clientset, base string) error {
	dir := filepath.Join(c.Repo, "test/e2e/manifests/components")
	if err := c.checkManifests(ctx, client, dir); err != nil {
		return err
	}
	policy := filepath.Join(base, "components/network-policy/networkpolicy.yaml")
	if err := run(ctx, c.kubectl("delete", "-f", policy)...); err != nil {
		return err
	}
	return run(ctx, c.kubectl("apply", "-k", base)...)
}

// checkManifests applies a directory of manifests and checks what it has made.
func (c *Cluster) checkManifests(ctx context.Context, client *kubernetes.Clientset, dir string) error {
	c.logf("applying %s", dir)
	out, err := exec.CommandContext(ctx, c.Kubectl(), c.kubectl("apply", "--validate=strict", "-k",
		dir)[1:]...).CombinedOutput()
	fmt.Print(string(out))
	if err != nil {
		return err
	}
	if strings.Contains(string(out), "Warning:") {
		return errors.New("the API server printed a warning")
	}
	if err := run(ctx, c.kubectl("wait", "--for=condition=Established", "crd", "--all",
		"--timeout=30s")...); err != nil {
		return err
	}
	return errors.Join(checkImages(ctx, client), c.checkInstaller(ctx, client), c.checkPrivileges(ctx, client))
}

// capabilities are those that the containers of the agent's pods may have.
var capabilities = map[string][]corev1.Capability{
	"agent":   {"SYS_CHROOT", "SYS_PTRACE", "SYS_ADMIN", "NET_ADMIN", "NET_RAW"},
	"install": {"SYS_CHROOT", "SYS_PTRACE", "DAC_OVERRIDE"},
}

// checkPrivileges verifies what the images can do, whatever they contain: the manager's pods meet
// the Pod Security Standard "restricted", as the API server enforces it, and the containers of the
// agent's have the capabilities that they need, and no volume of the host.
func (c *Cluster) checkPrivileges(ctx context.Context, client *kubernetes.Clientset) error {
	const restricted = "restricted"
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: restricted,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": restricted}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	err = machine.Poll(ctx, 30*time.Second, func() error { // until it has its service account
		_, err := client.CoreV1().ServiceAccounts(restricted).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	manager, err := client.AppsV1().Deployments(System).Get(ctx, Manager, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: Manager}, Spec: manager.Spec.Template.Spec}
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "default", "default"
	pod.Spec.PriorityClassName = "" // has a quota
	_, err = client.CoreV1().Pods(restricted).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	errs := []error{err}
	agent, err := client.AppsV1().DaemonSets(System).Get(ctx, Agent, metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec := agent.Spec.Template.Spec
	for _, v := range spec.Volumes {
		if v.EmptyDir == nil {
			errs = append(errs, fmt.Errorf("the agent's pods have the volume %s", v.Name))
		}
	}
	errs = append(errs, checkTokens(ctx, client, spec))
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := container.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			!slices.Equal(s.Capabilities.Add, capabilities[container.Name]) {
			errs = append(errs, fmt.Errorf("container %s has other privileges than %v", container.Name,
				capabilities[container.Name]))
		}
	}
	return errors.Join(errs...)
}

// checkTokens returns an error if the API server gives another container of an agent's pod than the
// agent's own a token, or the agent none.
func checkTokens(ctx context.Context, client *kubernetes.Clientset, spec corev1.PodSpec) error {
	pod, err := client.CoreV1().Pods(System).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: Agent},
		Spec: spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	tokens := map[string]bool{} // volumes with one
	for _, v := range pod.Spec.Volumes {
		tokens[v.Name] = v.Projected != nil && slices.ContainsFunc(v.Projected.Sources,
			func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil })
	}
	var errs []error
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		has := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return tokens[m.Name] })
		if has != (container.Name == "agent") {
			errs = append(errs, fmt.Errorf("container %s has a token for the API: %v", container.Name, has))
		}
	}
	return errors.Join(errs...)
}

// checkInstaller returns an error if the installer of the applied manifests uses a directory whose
// source docs/facts.md does not name, or does not stay where it replaces host-local.
func (c *Cluster) checkInstaller(ctx context.Context, client *kubernetes.Clientset) error {
	daemon, err := client.AppsV1().DaemonSets(System).Get(ctx, Agent, metav1.GetOptions{})
	if err != nil {
		return err
	}
	facts, err := os.ReadFile(filepath.Join(c.Repo, "docs/facts.md"))
	if err != nil {
		return err
	}
	for _, i := range daemon.Spec.Template.Spec.InitContainers {
		args := strings.Join(i.Args, " ")
		_, dir, found := strings.Cut(args, "--cni-bin-dir=")
		if !found || !strings.Contains(string(facts), " "+dir+" ") {
			return fmt.Errorf("the directory in %q is not in docs/facts.md", args)
		}
		stays := i.RestartPolicy != nil && *i.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if stays != strings.HasPrefix(args, "install --watch ") {
			return fmt.Errorf("the installer %q is restarted: %v", args, stays)
		}
	}
	return nil
}

// checkPolicies waits until the API server has type-checked the policies, and returns its warnings.
func checkPolicies(ctx context.Context, client *kubernetes.Clientset) error {
	var policies *admissionv1.ValidatingAdmissionPolicyList
	err := machine.Poll(ctx, 30*time.Second, func() (err error) {
		policies, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range policies.Items {
			if p.Status.ObservedGeneration < p.Generation || p.Status.TypeChecking == nil {
				return fmt.Errorf("policy %s is not type-checked yet", p.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range policies.Items {
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			errs = append(errs, fmt.Errorf("policy %s: %s: %s", p.Name, w.FieldRef, w.Warning))
		}
	}
	return errors.Join(errs...)
}

// checkImages returns an error for each image that the project does not build, or that a node would
// pull.
func checkImages(ctx context.Context, client *kubernetes.Clientset) error {
	ours := []string{"leasehold/agent:devel", "leasehold/manager:devel"}
	daemons, err := client.AppsV1().DaemonSets(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := client.AppsV1().Deployments(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var specs []corev1.PodSpec
	for _, d := range daemons.Items {
		specs = append(specs, d.Spec.Template.Spec)
	}
	for _, d := range deployments.Items {
		specs = append(specs, d.Spec.Template.Spec)
	}
	var errs []error
	for _, s := range specs {
		for _, c := range slices.Concat(s.InitContainers, s.Containers) {
			if c.ImagePullPolicy != corev1.PullNever {
				errs = append(errs, fmt.Errorf("container %s may pull the image %s from a registry", c.Name, c.Image))
			}
			if !slices.Contains(ours, c.Image) {
				errs = append(errs, fmt.Errorf("container %s uses the image %s; the project builds %s",
					c.Name, c.Image, strings.Join(ours, ", ")))
			}
		}
	}
	return errors.Join(errs...)
}
