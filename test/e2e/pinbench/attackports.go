package pinbench

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/httpserver"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// agentPort is the agent's, on the machine of the control plane.
const agentPort = 9470

// startAgent starts the real agent of a node, with the token of its pod, on the machine of the
// control plane.
func (a *attacks) startAgent(ctx context.Context, flags ...string) error {
	program, err := a.cluster.Build(ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-agent"})
	if err != nil {
		return err
	}
	kubeconfig, err := a.kubeconfig(cluster.Agent, a.agents[scraped].token, "", nil)
	if err != nil {
		return err
	}
	err = a.control().Start(ctx, machine.Start{Name: cluster.Agent, Log: a.cluster.Log(cluster.Control, cluster.Agent),
		Argv: append([]string{program, "--kubeconfig=" + kubeconfig, "--node-name=" + scraped, "--cni-conf-dir=",
			fmt.Sprintf("--metrics-addr=:%d", agentPort)}, flags...)})
	if err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		c, err := net.Dial("tcp", a.at(agentPort))
		if err == nil {
			c.Close()
		}
		return err == nil, nil
	})
}

// at returns the address of a port on the machine of the control plane.
func (a *attacks) at(port int) string { return fmt.Sprintf("%v:%d", a.cluster.ControlAddr(), port) }

// called returns an error unless the API server calls the webhook for a new pod.
func (a *attacks) called(ctx context.Context) error {
	p, err := a.admitted(ctx, retainedPod("called"))
	if err == nil && p.Labels[wellknown.LabelRetained] == "" {
		err = errors.New("the API server does not get through to the webhook")
	}
	return err
}

// scrape has many clients get the metrics without a pause.
func (a *attacks) scrape(ctx context.Context) error {
	var problems []error
	for name, port := range map[string]int{"agent": agentPort, "manager": metricsPort} {
		if err := a.scrapePort(ctx, port); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

func (a *attacks) scrapePort(ctx context.Context, port int) error {
	const (
		clients  = 64
		duration = 4 * time.Second
	)
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	var mu sync.Mutex
	collections := map[[sha256.Size]byte]bool{} // each has other values
	served, refused := 0, 0
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				status, body, err := get(ctx, client, "http://"+a.at(port)+"/metrics", "")
				mu.Lock()
				switch {
				case err != nil:
				case status == http.StatusServiceUnavailable:
					refused++
				case status == http.StatusOK:
					served++
					collections[sha256.Sum256(body)] = true
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	var problems []error
	if served == 0 {
		problems = append(problems, errors.New("no scrape is served"))
	}
	if limit := int(duration.Seconds()) + 1; len(collections) > limit {
		problems = append(problems, fmt.Errorf("%d scrapes make it collect %d times in %v, want at most %d", served,
			len(collections), duration, limit))
	}
	if refused == 0 {
		problems = append(problems, fmt.Errorf("%d clients are served at a time", clients))
	}
	return errors.Join(problems...)
}

// get returns the status and the body of a response.
func get(ctx context.Context, client *http.Client, url, token string) (status int, body []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// maxWebhookConns is that of the manager.
const maxWebhookConns = 1024

// connect opens more connections to each port than may be open, and sends nothing. The API server
// still gets through to the webhook.
func (a *attacks) connect(ctx context.Context) error {
	var problems []error
	for port, limit := range map[int]int{agentPort: httpserver.MaxConns, metricsPort: httpserver.MaxConns,
		healthPort: httpserver.MaxConns, webhookPort: maxWebhookConns} {
		if err := a.flood(port, limit, func() error { return a.called(ctx) }); err != nil {
			problems = append(problems, fmt.Errorf("port %d: %w", port, err))
		}
	}
	return errors.Join(problems...)
}

// flood opens more connections than a limit, and calls check while they are open.
func (a *attacks) flood(port, limit int, check func() error) error {
	const surplus = 100
	closed := make(chan struct{}, limit+surplus)
	for range limit + surplus {
		c, err := net.Dial("tcp", a.at(port))
		if err != nil {
			return err
		}
		defer c.Close()
		go func() {
			_, _ = io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	end := time.After(5 * time.Second) // less than a server waits for a request
	for i := range surplus {
		select {
		case <-closed:
		case <-end:
			return fmt.Errorf("%d open connections, want %d", limit+surplus-i, limit)
		}
	}
	return check()
}

// sendMuch sends requests to the webhook that do not end.
func (a *attacks) sendMuch(ctx context.Context) error {
	const (
		clients = 64
		limit   = 32 // MiB that the webhook reads at a time
	)
	ended := make(chan string, clients)
	for range clients {
		c, err := tls.Dial("tcp", a.at(webhookPort), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer c.Close()
		go func() {
			const header = "POST /pin HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
			fmt.Fprintf(c, header+"Content-Length: %d\r\n\r\n", 2<<20)
			_, _ = c.Write(make([]byte, 1<<20))
			response, _ := io.ReadAll(c)
			ended <- string(response)
		}()
	}
	end := time.After(8 * time.Second) // less than a server waits for the rest of a request
	for i := range clients - limit {
		select {
		case response := <-ended:
			if response != "" {
				return fmt.Errorf("the webhook answers a part of a request: %s", response)
			}
		case <-end:
			return fmt.Errorf("it has %d MiB of requests, want at most %d", clients-i, limit)
		}
	}
	return a.called(ctx)
}

// restart starts the manager again with further flags.
func (a *attacks) restart(ctx context.Context, flags ...string) error {
	if err := a.control().Stop(ctx, managerName(0)); err != nil {
		return err
	}
	a.managerFlags = append(a.managerFlags, flags...)
	if err := a.runManager(ctx, 0); err != nil {
		return err
	}
	if err := a.managerReady(ctx, 0); err != nil {
		return err
	}
	return until(ctx, func() (bool, error) { return a.called(ctx) == nil, nil })
}

// readMetrics gets the metrics of agent and manager with --metrics-secure, with the tokens of an
// account that may not, of one that may, and without one.
func (a *attacks) readMetrics(ctx context.Context) error {
	file := filepath.Join(a.cluster.Repo, "daemonset/components/metrics-secure/rbac.yaml")
	if err := a.kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: "prometheus"}
	if _, err := a.client.CoreV1().ServiceAccounts(tenant).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta},
		metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := a.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: tenant, Name: meta.Name}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "leasehold-metrics"},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	allowed, err := a.as(ctx, tenant, meta.Name, nil)
	if err != nil {
		return err
	}
	if err := a.control().Stop(ctx, cluster.Agent); err != nil {
		return err
	}
	if err := a.startAgent(ctx, "--metrics-secure"); err != nil {
		return err
	}
	if err := a.restart(ctx, "--metrics-secure"); err != nil {
		return err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	var problems []error
	for name, port := range map[string]int{"agent": agentPort, "manager": metricsPort} {
		url := "https://" + a.at(port) + "/metrics"
		for _, attempt := range []struct {
			with, token string
			want        int
		}{
			{"the token of an account that may", allowed.BearerToken, http.StatusOK}, // the role is effective now
			{"no token", "", http.StatusUnauthorized},
			{"an invalid token", allowed.BearerToken + "x", http.StatusUnauthorized},
			{"a user's token", a.userToken, http.StatusForbidden},
			{"an agent's token", a.agents[hostile].token, http.StatusForbidden},
		} {
			status, err := a.finalStatus(ctx, client, url, attempt.token, attempt.want == http.StatusOK)
			if err != nil || status != attempt.want {
				problems = append(problems, fmt.Errorf("%s: with %s: status %d, want %d (%v)", name, attempt.with,
					status, attempt.want, err))
			}
		}
	}
	return errors.Join(problems...)
}

// finalStatus gets metrics until the server has asked the API server about the token, and, if
// allowed is true, until they are served.
func (a *attacks) finalStatus(ctx context.Context, client *http.Client, url, token string,
	allowed bool) (status int, err error) {
	err = within(ctx, 20*time.Second, func() (bool, error) {
		now, body, err := get(ctx, client, url, token)
		if err != nil {
			return false, nil // it is starting
		}
		if status = now; allowed {
			return status == http.StatusOK && strings.Contains(string(body), "leasehold_"), nil
		}
		return status != http.StatusServiceUnavailable, nil
	})
	return status, err
}

func (a *attacks) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"--kubeconfig=" + a.cluster.Kubeconfig()}, args...)
	if out, err := exec.CommandContext(ctx, a.cluster.Kubectl(), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", args[1], err, out)
	}
	return nil
}

// askWebhooks calls the webhook with --webhook-client-ca for a pod that has an address, as the API
// server does, without a certificate and with one of another CA.
func (a *attacks) askWebhooks(ctx context.Context) error {
	const pod = "asked-0"
	if err := a.hold(ctx, honest, pod, "", lasting); err != nil {
		return err
	}
	if err := a.pinned(ctx, pod, honest, "it has an address there"); err != nil {
		return err
	}
	if answer, err := a.ask(ctx, pod, &tls.Certificate{}); err != nil || !strings.Contains(answer, "patch") {
		return fmt.Errorf("without --webhook-client-ca: %q, %w; want an answer", answer, err)
	}
	if err := a.restart(ctx, "--webhook-client-ca="+a.cluster.WebhookCA()); err != nil {
		return err
	}
	other, _, err := selfSigned(a.cluster.HostAddr(), "kube-apiserver")
	if err != nil {
		return err
	}
	for with, certificate := range map[string]*tls.Certificate{"no certificate": {},
		"a certificate of another CA": &other} {
		if answer, err := a.ask(ctx, pod, certificate); err == nil {
			return fmt.Errorf("with %s it answers %s", with, answer)
		}
	}
	return a.pinned(ctx, pod, honest, "the API server asks")
}

// ask asks the webhook about a pod with a client certificate, which may be empty, and returns its
// answer.
func (a *attacks) ask(ctx context.Context, pod string, certificate *tls.Certificate) (string, error) {
	review := fmt.Sprintf(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1",
		"kind": {"version": "v1", "kind": "Pod"}, "resource": {"version": "v1", "resource": "pods"},
		"operation": "CREATE", "namespace": %q, "name": %[2]q, "dryRun": true, "object": {"apiVersion": "v1",
		"kind": "Pod", "metadata": {"name": %[2]q, "namespace": %[1]q, "annotations": {
		"io.kubernetes.cri/reserved-ip-duration": "1h"}}, "spec": {"schedulerName": "default-scheduler",
		"containers": []}}}}`, a.namespace, pod)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return certificate, nil
			}}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.at(webhookPort)+"/pin",
		strings.NewReader(review))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return string(answer), err
}

// answerForAPI has a server with another certificate answer for the API server. Agent and manager
// connect, and send it no token, unless their kubeconfig names its CA.
func (a *attacks) answerForAPI(ctx context.Context) error {
	host := a.cluster.HostAddr()
	cert, ca, err := selfSigned(host)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return err
	}
	var connections, tokens atomic.Int32
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				tokens.Add(1)
			}
			http.NotFound(w, r)
		})}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	defer server.Close()
	url := "https://" + listener.Addr().String()
	manager, err := a.buildManager(ctx)
	if err != nil {
		return err
	}
	agent, err := a.cluster.Build(ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-agent"})
	if err != nil {
		return err
	}
	var problems []error
	for name, argv := range map[string][]string{
		"deceived-manager": {manager, "--cert-dir=" + certDir(0), "--webhook-port=9553", "--metrics-addr=0",
			"--health-addr=0"},
		"deceived-agent": {agent, "--node-name=" + scraped, "--cni-conf-dir=", "--metrics-addr="},
	} {
		for _, trusted := range [][]byte{nil, ca} {
			kubeconfig, err := a.kubeconfig(name, a.agents[scraped].token, url, trusted)
			if err != nil {
				return err
			}
			connections.Store(0)
			tokens.Store(0)
			err = a.control().Start(ctx, machine.Start{Name: name, Log: a.cluster.Log(cluster.Control, name),
				Argv: append(argv, "--kubeconfig="+kubeconfig)})
			if err != nil {
				return err
			}
			err = until(ctx, func() (bool, error) {
				return connections.Load() > 0 && (trusted == nil || tokens.Load() > 0), nil
			})
			time.Sleep(time.Second) // for its request
			switch err := errors.Join(err, a.control().Stop(ctx, name)); {
			case err != nil:
				return fmt.Errorf("%s: %d connections, %d tokens with its CA: %w", name, connections.Load(),
					tokens.Load(), err)
			case trusted == nil && tokens.Load() > 0:
				problems = append(problems, fmt.Errorf("%s sends it a token", name))
			}
		}
	}
	return errors.Join(problems...)
}
