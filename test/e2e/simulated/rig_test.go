package simulated

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// A rig is a running control plane without nodes. All methods but those that return an error must
// be called by the goroutine of the test.
type rig struct {
	*testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	api     *rest.Config
	client  *kubernetes.Clientset
	env     []string // of the manager in the manifests, such as the limit of its memory
}

const (
	replicas = 2
	// limit is the end of each wait for a state. Only a failure reaches it.
	limit = 10 * time.Minute

	// The ports of the first replica of the manager, on the machine of the control plane. Those of
	// the second one are larger by portsApart.
	webhookPort = 9443
	metricsPort = 9471
	portsApart  = 10
)

// start starts a control plane, which ends with the test, and applies the manifests without
// workloads.
func start(t *testing.T) *rig {
	log.SetLogger(logr.Discard()) // of controller-runtime, which complains after 30 s without one
	r := &rig{T: t, ctx: t.Context()}
	repo, err := filepath.Abs("../../..")
	r.must(err)
	dir, err := cluster.Dir(repo)
	r.must(err)
	r.cluster, err = cluster.NewBare(repo, dir)
	r.must(err)
	r.cluster.Simulated = true
	r.must(r.cluster.UpControl(r.ctx))
	t.Cleanup(func() {
		kept := filepath.Join(r.cluster.Dir, "logs")
		_ = os.RemoveAll(kept)
		_ = os.Rename(r.cluster.Scratch("logs"), kept)
		if err := r.cluster.Down(context.WithoutCancel(r.ctx)); err != nil {
			t.Error(err)
		}
	})
	r.api, err = clientcmd.BuildConfigFromFlags("", r.cluster.Kubeconfig())
	r.must(err)
	r.api.QPS = -1
	r.client, err = kubernetes.NewForConfig(r.api)
	r.must(err)
	r.kubectl("apply", "--server-side", "-k", filepath.Join(repo, "daemonset"))
	r.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	deployment, err := r.client.AppsV1().Deployments(kube.Namespace).Get(r.ctx, kube.ManagerName, metav1.GetOptions{})
	r.must(err)
	for _, v := range deployment.Spec.Template.Spec.Containers[0].Env {
		if v.ValueFrom == nil {
			r.env = append(r.env, v.Name+"="+v.Value)
		}
	}
	r.kubectl("--namespace="+kube.Namespace, "delete", "daemonset,deployment,poddisruptionbudget", "--all")
	// It lets nobody but the agents write reservations.
	r.kubectl("delete", "validatingadmissionpolicybinding", "leasehold-reservations")
	return r
}

// number returns a number from the environment, or a default.
func (r *rig) number(name string, value int) int {
	if text := os.Getenv(name); text != "" {
		var err error
		value, err = strconv.Atoi(text)
		r.must(err)
	}
	return value
}

// must ends the test if err is not nil.
func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) kubectl(args ...string) {
	r.Helper()
	cmd := exec.CommandContext(r.ctx, r.cluster.Kubectl(), append([]string{"--kubeconfig=" + r.cluster.Kubeconfig()},
		args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (r *rig) control() machine.Machine { return r.cluster.Machine(cluster.Control) }

// managerName is the name of a replica.
func managerName(i int) string { return fmt.Sprintf("%s-%d", kube.ManagerName, i) }

// startManagers starts the replicas of the real manager, with the permissions of its service
// account, and waits until they are ready.
func (r *rig) startManagers() {
	program, err := r.cluster.Build(r.ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-manager"})
	r.must(err)
	began := time.Now()
	kubeconfig := r.kubeconfig(kube.ManagerName)
	for i := range replicas {
		port := func(flag string, first int) string { return fmt.Sprintf("--%s%d", flag, first+portsApart*i) }
		certificates := "/run/" + managerName(i)
		_, err := r.control().Run(r.ctx, "mkdir", "-p", certificates)
		r.must(err)
		r.must(r.control().Start(r.ctx, machine.Service{Name: managerName(i), Restart: true, Env: r.env,
			Log: r.cluster.Log(cluster.Control, managerName(i)),
			Argv: []string{program, "--kubeconfig=" + kubeconfig, "--cert-dir=" + certificates,
				port("webhook-port=", webhookPort), port("metrics-addr=:", metricsPort)}}))
	}
	for i := range replicas {
		r.until(managerName(i)+" is ready", func() error {
			resp, err := http.Get(fmt.Sprintf("http://%v:%d/readyz", r.cluster.ControlAddr(), metricsPort+portsApart*i))
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("/readyz: %s", resp.Status)
			}
			return nil
		})
	}
	r.Logf("%d managers from start to ready: %.1f s", replicas, time.Since(began).Seconds())
}

// kubeconfig writes a kubeconfig with a token of one of leasehold's service accounts.
func (r *rig) kubeconfig(name string) string {
	reply, err := r.client.CoreV1().ServiceAccounts(kube.Namespace).CreateToken(r.ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: new(int64(24 * 60 * 60))}}, metav1.CreateOptions{})
	r.must(err)
	config, err := clientcmd.LoadFromFile(r.cluster.Kubeconfig())
	r.must(err)
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, reply.Status.Token
	}
	path := r.cluster.Scratch(name + ".kubeconfig")
	r.must(clientcmd.WriteToFile(*config, path))
	return path
}

// until calls reached until it returns nil.
func (r *rig) until(state string, reached func() error) {
	r.Helper()
	if err := machine.Poll(r.ctx, limit, reached); err != nil {
		r.Fatalf("waiting until %s: %v", state, err)
	}
}

// spread returns the median, p99 and the maximum.
func spread(values []time.Duration) string {
	slices.Sort(values)
	of := func(percent int) time.Duration {
		return values[(len(values)-1)*percent/100].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, max %v", of(50), of(99), of(100))
}
