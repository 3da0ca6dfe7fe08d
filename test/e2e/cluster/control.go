package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The components of the control plane, in the order in which they are started.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

func (c *Cluster) controlService(name string) machine.Service {
	pki := func(file string) string { return c.path("run/pki/" + file) }
	bin := c.path("bin/" + c.kubernetes() + "/" + name)
	var argv []string
	switch name {
	case Etcd:
		argv = []string{c.path("bin/etcd/server"), "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380"}
	case APIServer:
		argv = []string{bin, "--etcd-servers=http://127.0.0.1:2379",
			"--advertise-address=" + c.controlAddr().Addr().String(), fmt.Sprintf("--secure-port=%d", apiPort),
			"--token-auth-file=" + pki("tokens.csv"),
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + pki("apiserver.key"),
			"--service-account-signing-key-file=" + pki("apiserver.key"),
			"--service-cluster-ip-range=" + serviceNetwork,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--enable-aggregator-routing=true", "--allow-privileged=true", "--profiling=false"}
	case ControllerManager:
		argv = []string{bin, "--kubeconfig=" + c.path("run/controller-manager.kubeconfig"),
			"--service-account-private-key-file=" + pki("apiserver.key"), "--root-ca-file=" + pki("apiserver.crt"),
			"--use-service-account-credentials=true", "--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400", "--node-monitor-grace-period=20s", "--profiling=false"}
		if c.Simulated {
			argv = append(argv, "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,"+
				"-garbage-collector-controller,-pod-garbage-collector-controller")
		}
	case Scheduler:
		argv = []string{bin, "--kubeconfig=" + c.path("run/scheduler.kubeconfig"), "--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400", "--profiling=false"}
	}
	// As a kubelet does for a static pod: a scheduler exits if it finds its cache inconsistent.
	return machine.Service{Name: name, Argv: argv, Log: c.Log(Control, name), Restart: true}
}

// startControlPlane boots the machine of the control plane, and waits until the API server is
// ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.powerOn(ctx, Control, c.controlAddr()); err != nil {
		return err
	}
	return c.RunControl(ctx)
}

// StopControl stops a component of the control plane. RunControl starts it again.
func (c *Cluster) StopControl(ctx context.Context, name string) error {
	return c.Machine(Control).Stop(ctx, name)
}

// RunControl starts the components of the control plane that do not run.
func (c *Cluster) RunControl(ctx context.Context) error {
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler} {
		if name == ControllerManager {
			// The other components exit if the API server is not ready for long.
			if err := c.waitAPI(ctx); err != nil {
				return err
			}
		}
		m := c.Machine(Control)
		if m.Services()[name] != 0 {
			continue
		}
		err := m.Start(ctx, c.controlService(name))
		if err != nil && m.Services()[name] == 0 { // it may have been restarted since
			return err
		}
	}
	return c.waitAPI(ctx)
}

func (c *Cluster) waitAPI(ctx context.Context) error {
	client, _, err := c.Clients()
	if err != nil {
		return err
	}
	return machine.Poll(ctx, 5*time.Minute, func() error {
		out, err := client.RESTClient().Get().AbsPath("/readyz").Timeout(5 * time.Second).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("the API server is not ready: %w: %s", err, out)
		}
		return nil
	})
}
