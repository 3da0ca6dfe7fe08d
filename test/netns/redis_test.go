package netns_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestRedisCluster shows what docs/recipes/redis.md says: all members of a Redis cluster are
// deleted at once, and find each other again, because each has the address that is in the others'
// nodes.conf. Nobody calls CLUSTER MEET.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	members := make([]*redisMember, 3)
	create := []string{"--cluster-yes", "--cluster", "create"}
	for i := range members {
		pod := lab.NewPod("db", fmt.Sprint("redis-", i), "10")
		members[i] = &redisMember{t: t, dir: t.TempDir(), pod: pod}
		members[i].start(node, net)
		create = append(create, members[i].address+":6379")
	}
	members[0].cli(create...)
	for _, m := range members {
		m.waitUntilOK()
	}
	for i, m := range members {
		m.wait("writes", func() bool {
			return m.try("-c", "set", fmt.Sprint("key", i), fmt.Sprint("value", i)) == "OK"
		})
	}

	for _, m := range members {
		m.kill()
	}
	for _, m := range members {
		stop(t, m.sandbox, net)
	}
	start(t, node, net, lab.NewPod("db", "other", ""))
	for i := range members { // in another order
		m := members[len(members)-1-i]
		m.pod = recreated(m.pod)
		m.start(node, net)
	}
	for _, m := range members {
		m.waitUntilOK()
	}
	for i, m := range members { // key i is at any of the members
		m.wait("reads what was written", func() bool {
			return m.try("-c", "get", fmt.Sprint("key", i)) == fmt.Sprint("value", i)
		})
	}
}

// redisMember is a member of a Redis cluster, whose files outlive its pods.
type redisMember struct {
	t       *testing.T
	dir     string
	pod     lab.Pod
	sandbox *lab.Sandbox
	address string
	server  *exec.Cmd
}

// start starts the member in a new sandbox of its pod.
func (m *redisMember) start(node *lab.Node, net *lab.Network) {
	m.t.Helper()
	m.sandbox, m.address = start(m.t, node, net, m.pod)
	// The package redis-tools has the server under another name, which begins a server if it is
	// called redis-server.
	program, err := exec.LookPath("redis-check-rdb")
	if err != nil {
		m.t.Fatalf("%v; scripts/build-lab installs redis-tools", err)
	}
	m.server = exec.Command("nsenter", "--net="+m.sandbox.NetNS, "bash", "-c", `exec -a redis-server "$@"`, "bash",
		program, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "60000",
		"--dir", m.dir, "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no")
	log, err := os.Create(filepath.Join(m.dir, "log"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.server.Stdout, m.server.Stderr = log, log
	err = m.server.Start()
	log.Close()
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(m.kill)
	m.wait("answers", func() bool { return m.try("ping") == "PONG" })
}

// kill ends the server without notice.
func (m *redisMember) kill() {
	m.server.Process.Kill()
	m.server.Wait()
}

// try runs redis-cli in the member's sandbox, and returns what it prints.
func (m *redisMember) try(args ...string) string {
	args = append([]string{"--net=" + m.sandbox.NetNS, "redis-cli"}, args...)
	out, _ := exec.Command("nsenter", args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

// cli is try for a command that has to succeed.
func (m *redisMember) cli(args ...string) string {
	m.t.Helper()
	out := m.try(args...)
	if strings.Contains(out, "ERR") || strings.Contains(out, "DOWN") || strings.Contains(out, "Could not connect") {
		m.t.Fatalf("redis-cli %s: %s", strings.Join(args, " "), out)
	}
	return out
}

// waitUntilOK waits until the member sees a cluster that serves all keys.
func (m *redisMember) waitUntilOK() {
	m.t.Helper()
	m.wait("sees a working cluster", func() bool {
		return strings.Contains(m.try("cluster", "info"), "cluster_state:ok")
	})
}

func (m *redisMember) wait(what string, done func() bool) {
	m.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(m.dir, "log"))
			m.t.Fatalf("%s does not become a member that %s:\n%s\n%s\n%s", m.pod.Name, what, m.try("cluster", "info"),
				m.try("cluster", "nodes"), log)
		}
	}
}
