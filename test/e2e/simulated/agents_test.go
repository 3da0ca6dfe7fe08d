package simulated

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
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// agents is the program with the agents and stores of the nodes: leasehold-agent with the files of
// the directory agents.
type agents struct {
	process *exec.Cmd
	client  *http.Client
}

// buildAgents builds the program.
func buildAgents(t *testing.T, repo, dir string) (program string) {
	t.Helper()
	replace := map[string]string{}
	for _, file := range []string{"agents.go", "kernel.go"} {
		replace[filepath.Join(repo, "cmd/leasehold-agent/simulated_"+file)] =
			filepath.Join(repo, "test/e2e/simulated/agents", file)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "simulated-agents")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-tags", "simulated", "-buildvcs=false",
		"-o", program, "./cmd/leasehold-agent")
	cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the simulated agents: %v\n%s", err, out)
	}
	return program
}

// TestAgentsCompile builds the program without running it: only the other tests of this package
// do, which take long.
func TestAgentsCompile(t *testing.T) {
	repo, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	buildAgents(t, repo, t.TempDir())
}

// startAgents starts the program with the nodes of a population and the leases of its pods. Each
// agent has a token of its own, which is bound to a pod of the agent on its node. The agents are
// started one after the other in the given time. The program ends with the test.
func (r *rig) startAgents(c population, f filled, within time.Duration) *agents {
	program := buildAgents(r.T, r.cluster.Repo, r.cluster.Scratch(""))
	parent := os.Getenv("FILES") // 4 MiB for each node
	if parent == "" {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "simulated-*")
	r.must(err)
	log, err := os.Create(r.cluster.Log("host", "agents"))
	r.must(err)
	socket := filepath.Join(dir, "socket")
	a := &agents{process: exec.Command(program, "simulate", socket, dir)}
	a.process.Stdout, a.process.Stderr = log, log
	r.allowInotify(c.nodes + 256)
	a.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	r.must(a.process.Start())
	r.Cleanup(func() {
		_ = a.process.Process.Kill()
		_ = a.process.Wait()
		_ = os.RemoveAll(dir)
		_ = log.Close()
	})
	r.until("the agents' program serves", func() error { _, err := os.Stat(socket); return err })
	r.addNodes(a, c, f)
	r.must(a.run(r.ctx, nodeNames(0, c.nodes), false, within))
	return a
}

// allowInotify lets the user have as many inotify instances, of which each agent has one, until the
// test ends.
func (r *rig) allowInotify(instances int) {
	const file = "/proc/sys/fs/inotify/max_user_instances"
	before, err := os.ReadFile(file)
	r.must(err)
	if n, err := strconv.Atoi(strings.TrimSpace(string(before))); err != nil || n < instances {
		r.must(os.WriteFile(file, []byte(strconv.Itoa(instances)), 0o644))
		r.Cleanup(func() { _ = os.WriteFile(file, before, 0o644) })
	}
}

func nodeNames(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, nodeName(i))
	}
	return names
}

func (a *agents) ask(ctx context.Context, path string, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://simulated"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
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

// run starts the agents of nodes, spread over a duration, or stops them.
func (a *agents) run(ctx context.Context, nodes []string, stop bool, within time.Duration) error {
	return a.ask(ctx, "/agents", map[string]any{"Nodes": nodes, "Stop": stop, "Within": within}, &struct{}{})
}

// add is the ADD of a pod.
func (a *agents) add(ctx context.Context, p *corev1.Pod, container string) (netip.Addr, error) {
	var reply struct{ Address string }
	err := a.ask(ctx, "/call", map[string]any{"Node": p.Spec.NodeName, "Namespace": p.Namespace, "Pod": p.Name,
		"UID": p.UID, "Container": container, "Annotations": p.Annotations}, &reply)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(reply.Address)
}

// del is the DEL of a pod.
func (a *agents) del(ctx context.Context, p *corev1.Pod, container string) error {
	return a.ask(ctx, "/call", map[string]any{"Node": p.Spec.NodeName, "Container": container, "Del": true},
		&struct{}{})
}

// addNodes gives the program the nodes of a population, with the leases of their pods.
func (r *rig) addNodes(a *agents, c population, f filled) {
	type pod struct {
		Namespace, Name, UID, ID, Container string
		Address                             netip.Addr
		Window                              time.Duration
		Released                            *time.Time
	}
	type node struct {
		Name, Token string
		Subnet      netip.Prefix
		Pods        []pod
	}
	nodes := make([]node, c.nodes)
	r.each("agents' tokens", c.nodes, func(ctx context.Context, i int) error {
		p, err := r.client.CoreV1().Pods(kube.Namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-" + nodeName(i)},
			Spec: corev1.PodSpec{NodeName: nodeName(i), ServiceAccountName: cluster.Agent,
				Containers: containers("10m", "16Mi")}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		nodes[i].Name, nodes[i].Subnet = nodeName(i), subnet(i, c.nodes)
		nodes[i].Token, err = r.token(kube.Namespace, cluster.Agent, p)
		return err
	})
	for i := range c.reservations {
		p := pod{Namespace: c.namespace(i), Name: c.podName(i), UID: f.pods[i], ID: c.leaseID(i), Window: window,
			Container: fmt.Sprintf("container-%d", i), Address: c.address(i)}
		if c.isAway(i) {
			p.Released = &f.since
		}
		nodes[i%c.nodes].Pods = append(nodes[i%c.nodes].Pods, p)
	}
	r.must(a.ask(r.ctx, "/nodes", map[string]any{"API": r.api.Host, "CA": string(r.api.CAData), "Nodes": nodes},
		&struct{}{}))
}
