package pinbench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// simulated are the agents and the lease stores of simulated nodes, in a program of their own that
// is built from the tree of the cluster. It is leasehold-agent with the files of
// test/e2e/simulated.
type simulated struct {
	dir     string // of the nodes' files
	process *exec.Cmd
	client  *http.Client
}

// overlaid are the files that are added to the program, by their paths in the tree of the cluster.
var overlaid = map[string]string{
	"cmd/leasehold-agent/simulated_agents.go": "agents/agents.go",
	"cmd/leasehold-agent/simulated_kernel.go": "agents/kernel.go",
	"pkg/agent/simulated_signal.go":           "changes/signal.go",
}

// buildSimulated builds the program. files is the directory test/e2e/simulated.
func (b *Bench) buildSimulated(ctx context.Context, files string) (string, error) {
	replace := map[string]string{}
	for at, file := range overlaid {
		replace[filepath.Join(b.cluster.Repo, at)] = filepath.Join(files, file)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay, program := b.cluster.Scratch("overlay.json"), b.cluster.Scratch("simulated-agents")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-tags", "simulated", "-trimpath",
		"-buildvcs=false", "-o", program, "./cmd/leasehold-agent")
	cmd.Dir, cmd.Env = b.cluster.Repo, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the simulated agents: %w\n%s", err, out)
	}
	return program, nil
}

// startSimulated starts the program without nodes. Their files will be in a directory in parent.
func (b *Bench) startSimulated(ctx context.Context, program, parent string) (*simulated, error) {
	dir, err := os.MkdirTemp(parent, "simulated-*")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(b.cluster.Log("host", "agents"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	socket := filepath.Join(dir, "socket")
	s := &simulated{dir: dir, process: exec.Command(program, "simulate", socket, dir)}
	s.process.Stdout, s.process.Stderr = log, log
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	return s, until(ctx, func() (bool, error) { _, err := os.Stat(socket); return err == nil, nil })
}

func (s *simulated) close() error {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	return os.RemoveAll(s.dir)
}

func (s *simulated) ask(ctx context.Context, path string, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://simulated"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("simulated agents: %s", bytes.TrimSpace(text))
	}
	return json.Unmarshal(text, reply)
}

// agents starts the agents of nodes, spread over a duration, or stops them. An agent that runs is
// not started.
func (s *simulated) agents(ctx context.Context, nodes []string, stop bool, within time.Duration) error {
	return s.ask(ctx, "/agents", map[string]any{"Nodes": nodes, "Stop": stop, "Within": within}, &struct{}{})
}

// restart stops the agents of nodes, and starts all of them at once.
func (s *simulated) restart(ctx context.Context, nodes []string) error {
	if err := s.agents(ctx, nodes, true, 0); err != nil {
		return err
	}
	return s.agents(ctx, nodes, false, 0)
}

// Add implements fleet.Runtime.
func (s *simulated) Add(ctx context.Context, node string, p *corev1.Pod, id string) (netip.Addr, error) {
	var reply struct{ Address string }
	err := s.ask(ctx, "/call", map[string]any{"Node": node, "Namespace": p.Namespace, "Pod": p.Name, "UID": p.UID,
		"Container": id, "Annotations": p.Annotations}, &reply)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(reply.Address)
}

// Del implements fleet.Runtime.
func (s *simulated) Del(ctx context.Context, node string, _ *corev1.Pod, id string) error {
	return s.ask(ctx, "/call", map[string]any{"Node": node, "Container": id, "Del": true}, &struct{}{})
}

// addNodes gives the program the nodes of a population, with the leases of their pods. Each agent
// has a token of its own, which is bound to a pod of the agent on its node.
func (b *Bench) addNodes(ctx context.Context, s *simulated, c population, f filled) (agents []*corev1.Pod, err error) {
	type pod struct {
		Namespace, Name, UID, ID, Container string
		Address                             netip.Addr
		Window                              time.Duration
		Released                            *time.Time
	}
	type node struct {
		Name, Token string
		Pods        []pod
	}
	nodes := make([]node, c.Nodes)
	agents = make([]*corev1.Pod, c.Nodes)
	err = b.each(ctx, "agents' accounts", c.Nodes, func(ctx context.Context, i int) (err error) {
		nodes[i].Name = c.nodeName(i)
		agents[i], err = b.client.CoreV1().Pods(wellknown.Namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-" + c.nodeName(i)},
			Spec: corev1.PodSpec{NodeName: c.nodeName(i), ServiceAccountName: cluster.Agent,
				Containers: containers("10m", "16Mi")}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		day := int64((24 * time.Hour).Seconds())
		reply, err := b.client.CoreV1().ServiceAccounts(wellknown.Namespace).CreateToken(ctx, cluster.Agent,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
					Name: agents[i].Name, UID: agents[i].UID}}}, metav1.CreateOptions{})
		if err == nil {
			nodes[i].Token = reply.Status.Token
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range c.Reservations {
		p := pod{Namespace: c.namespace(i), Name: c.podName(i), UID: f.pods[i], ID: c.leaseID(i), Window: window,
			Container: fmt.Sprintf("container-%d", i), Address: netip.MustParseAddr(c.address(i))}
		if c.held(i) {
			p.UID, p.Released = awayUID, &f.since
		}
		nodes[c.node(i)].Pods = append(nodes[c.node(i)].Pods, p)
	}
	return agents, s.ask(ctx, "/nodes", map[string]any{"API": b.api.Host, "CA": string(b.api.CAData),
		"Network": podNetwork, "Nodes": nodes}, &struct{}{})
}
