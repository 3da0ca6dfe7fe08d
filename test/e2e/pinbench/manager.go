package pinbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The manager's ports, on the machine of the control plane.
const (
	webhookPort = 9443
	metricsPort = 9471
	healthPort  = 9472
)

// managerStart is the maximum duration of the manager's start with a population on a busy machine.
const managerStart = 5 * time.Minute

// workloads are the kinds that start pods. They are not applied, because the nodes of a fleet run
// no programs: the manager runs on the control plane's machine.
var workloads = []string{"DaemonSet", "Deployment", "PodDisruptionBudget"}

const webhookConfiguration = "MutatingWebhookConfiguration"

// render returns the objects of the project's manifests, without workloads.
func (b *Bench) render(ctx context.Context) ([]*unstructured.Unstructured, error) {
	objects, err := b.manifests(ctx)
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return slices.Contains(workloads, o.GetKind())
	}), err
}

// managerEnv returns the environment of the manager in the manifests, such as the limit of its
// memory.
func (b *Bench) managerEnv(ctx context.Context) (env []string, err error) {
	objects, err := b.manifests(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() != "Deployment" || o.GetName() != wellknown.ManagerName {
			continue
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
			return nil, err
		}
		for _, v := range d.Spec.Template.Spec.Containers[0].Env {
			if v.ValueFrom == nil {
				env = append(env, v.Name+"="+v.Value)
			}
		}
	}
	return env, nil
}

// manifests returns the objects of the project's manifests.
func (b *Bench) manifests(ctx context.Context) ([]*unstructured.Unstructured, error) {
	cmd := exec.CommandContext(ctx, b.cluster.Kubectl(), "kustomize", filepath.Join(b.cluster.Repo, "daemonset"))
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl kustomize: %w: %s", err, &diag)
	}
	var objects []*unstructured.Unstructured
	for doc := range strings.SplitSeq(string(out), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			return nil, err
		}
		if o.Object != nil {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// apply applies the objects of the manifests for which want returns true.
func (b *Bench) apply(ctx context.Context, want func(*unstructured.Unstructured) bool) error {
	objects, err := b.render(ctx)
	if err != nil {
		return err
	}
	var docs []string
	for _, o := range objects {
		if !want(o) {
			continue
		}
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		docs = append(docs, string(text))
	}
	cmd := exec.CommandContext(ctx, b.cluster.Kubectl(), "--kubeconfig="+b.cluster.Kubeconfig(), "apply",
		"--server-side", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.Join(docs, "---\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	return nil
}

// reservationsPolicy lets nobody but the agents write reservations. Those of simulated nodes are
// written by the administrator.
const reservationsPolicy = "leasehold-reservations"

// applyProduct applies all objects except the webhook, which needs a running manager, and the
// policy that would keep the administrator from writing reservations. A Service gets no selector,
// because startManager writes its endpoints.
func (b *Bench) applyProduct(ctx context.Context) error {
	// Kinds and namespaces first, because the other objects need them.
	for _, first := range []bool{true, false} {
		err := b.apply(ctx, func(o *unstructured.Unstructured) bool {
			basic := slices.Contains([]string{"Namespace", "CustomResourceDefinition"}, o.GetKind())
			if o.GetKind() == "Service" {
				unstructured.RemoveNestedField(o.Object, "spec", "selector")
			}
			return basic == first && o.GetKind() != webhookConfiguration && o.GetName() != reservationsPolicy
		})
		if err != nil {
			return err
		}
	}
	return b.established(ctx)
}

func (b *Bench) established(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, b.cluster.Kubectl(), "--kubeconfig="+b.cluster.Kubeconfig(), "wait",
		"--for=condition=Established", "--timeout=60s", "crd", "--all")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl wait: %w\n%s", err, out)
	}
	return nil
}

func (b *Bench) buildManager(ctx context.Context) (string, error) {
	return b.cluster.Build(ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-manager"})
}

// startManager starts the real manager, with the permissions of its service account, and waits
// until the API server can call it.
func (b *Bench) startManager(ctx context.Context) error { return b.startManagers(ctx, 1, nil) }

// startManagers starts replicas. They reach the API server through a proxy if it is not nil.
func (b *Bench) startManagers(ctx context.Context, replicas int, through *proxy) error {
	program, err := b.buildManager(ctx)
	if err != nil {
		return err
	}
	kubeconfig, err := b.serviceAccount(ctx, wellknown.Namespace, wellknown.ManagerName, through)
	if err != nil {
		return err
	}
	env, err := b.managerEnv(ctx)
	if err != nil {
		return err
	}
	b.manager = func(i int) machine.Start {
		return machine.Start{Name: managerName(i), Restart: b.managerRestarts, Env: env,
			Log: b.cluster.Log(cluster.Control, managerName(i)),
			Argv: append([]string{program, "--kubeconfig=" + kubeconfig, "--cert-dir=" + certDir(i),
				fmt.Sprintf("--webhook-port=%d", webhookPort+i), fmt.Sprintf("--metrics-addr=:%d",
					metricsPort+portsApart*i),
				fmt.Sprintf("--health-addr=:%d", healthPort+portsApart*i)}, b.managerFlags...)}
	}
	b.say("starting the manager")
	if err := b.apply(ctx,
		func(o *unstructured.Unstructured) bool { return o.GetKind() == webhookConfiguration }); err != nil {
		return err
	}
	for i := range replicas {
		if err := b.leadService(ctx, i); err != nil {
			return err
		}
		if err := b.runManager(ctx, i); err != nil {
			return err
		}
	}
	for i := range replicas {
		if err := b.managerReady(ctx, i); err != nil {
			return errors.Join(err, b.stopManager(ctx))
		}
	}
	return nil
}

// portsApart is the distance between the ports of two replicas.
const portsApart = 10

func managerName(i int) string {
	if i == 0 {
		return wellknown.ManagerName
	}
	return fmt.Sprintf("%s-%d", wellknown.ManagerName, i)
}

func certDir(i int) string { return "/run/" + managerName(i) }

// runManager starts a replica.
func (b *Bench) runManager(ctx context.Context, i int) error {
	if _, err := b.control().Run(ctx, "mkdir", "-p", certDir(i)); err != nil {
		return err
	}
	return b.control().Start(ctx, b.manager(i))
}

func (b *Bench) control() machine.Client { return b.cluster.Machine(cluster.Control) }

// stopManager removes the webhook and stops the replicas.
func (b *Bench) stopManager(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	return errors.Join(b.control().Stop(ctx, managerName(0)), b.control().Stop(ctx, managerName(1)),
		ignoreNotFound(b.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx,
			wellknown.ManagerName, metav1.DeleteOptions{})))
}

// leadService writes the endpoints of the manager's Service: a replica on the control plane's
// machine.
func (b *Bench) leadService(ctx context.Context, i int) error {
	service, err := b.client.CoreV1().Services(wellknown.Namespace).Get(ctx, wellknown.ManagerName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	port, yes := int32(webhookPort+i), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: managerName(i),
			Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{b.cluster.ControlAddr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range service.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port})
	}
	_, err = b.client.DiscoveryV1().EndpointSlices(wellknown.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// managerReady waits until a replica is ready and the API server trusts its certificate.
func (b *Bench) managerReady(ctx context.Context, i int) error {
	last := errors.New("no response yet")
	err := within(ctx, managerStart, func() (bool, error) {
		resp, err := http.Get(fmt.Sprintf("http://%v:%d/readyz", b.cluster.ControlAddr(), healthPort+portsApart*i))
		if err != nil {
			last = err
			return false, nil
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			last = fmt.Errorf("/readyz: %s", resp.Status)
			return false, nil
		}
		c, err := b.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx,
			wellknown.ManagerName, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = errors.New("the webhook configuration has no caBundle")
		return !slices.ContainsFunc(c.Webhooks,
			func(w admissionregistrationv1.MutatingWebhook) bool { return len(w.ClientConfig.CABundle) == 0 }), nil
	})
	if err != nil {
		return fmt.Errorf("the manager is not ready: %w (%w); see %s",
			err, last, b.cluster.Log(cluster.Control, managerName(i)))
	}
	return nil
}

// serviceAccount writes a kubeconfig with a token of a service account, which uses the proxy if it
// is not nil.
func (b *Bench) serviceAccount(ctx context.Context, namespace, name string, through *proxy) (string, error) {
	day := int64((24 * time.Hour).Seconds())
	token, err := b.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}},
		metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if through != nil {
		return b.kubeconfig(name, token.Status.Token, through.url, through.ca)
	}
	return b.kubeconfig(name, token.Status.Token, "", nil)
}

// kubeconfig writes a kubeconfig with a token. An empty server or CA is that of the API server.
func (b *Bench) kubeconfig(name, token, server string, ca []byte) (string, error) {
	config, err := clientcmd.LoadFromFile(b.cluster.Kubeconfig())
	if err != nil {
		return "", err
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, token
	}
	for _, cluster := range config.Clusters {
		if server != "" {
			cluster.Server = server
		}
		if ca != nil {
			cluster.CertificateAuthorityData = ca
		}
	}
	path := b.cluster.Scratch(name + ".kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}
