package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeKubectl is a cluster of two nodes for kubectl leasehold uninstall: a program that logs its
// arguments, and prints what the test has written.
type fakeKubectl struct {
	t   *testing.T
	dir string
}

func newFakeKubectl(t *testing.T) fakeKubectl {
	t.Helper()
	k := fakeKubectl{t, t.TempDir()}
	k.write("kubectl", `#!/bin/sh
cd `+k.dir+`
echo "$*" >>log
case "$*" in
get*"daemonset leasehold-agent") cat agent ;;
get*"pod -l app.kubernetes.io/name=leasehold-agent") cat pods ;;
*exec*--dry-run) if test -e "refusal of $4"; then cat "refusal of $4" >&2; exit 1; fi ;;
patch*"daemonset leasehold-agent"*) mv removing agent ;;
"rollout status"*leasehold-agent*) test ! -e late || { cat late >&2; exit 1; } ;;
get*"configmap kube-flannel-cfg") test ! -e configmap || cat configmap ;;
get*"kube-flannel daemonset") echo '{"items":[{"metadata":{"name":"kube-flannel-ds"},"spec":{"template":{"spec":
	{"volumes":[{"configMap":{"name":"kube-flannel-cfg"}}]}}}}]}' ;;
esac
`)
	for name, verb := range map[string]string{"agent": "install", "removing": "uninstall"} {
		k.write(name, `{"status":{"desiredNumberScheduled":2},"spec":{"template":{"spec":{
			"initContainers":[{"name":"install","args":["`+verb+`","--cni-bin-dir=/opt/cni/bin","--watch"]}],
			"containers":[{"name":"agent","args":["--cni-conf-dir=/conf"],
			"securityContext":{"capabilities":{"add":["SYS_ADMIN"]}}}]}}}}`)
	}
	k.pods("install", "", "")
	return k
}

func (k fakeKubectl) write(name, text string) {
	k.t.Helper()
	if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o755); err != nil {
		k.t.Fatal(err)
	}
}

// pods writes the pods of the DaemonSet, of node1, node2 and so on, with a verb of their init
// containers, and with the state of these.
func (k fakeKubectl) pods(verb string, states ...string) {
	k.t.Helper()
	var items []string
	for i, state := range states {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"pod%[1]d"},"spec":{"nodeName":"node%[1]d",
			"initContainers":[{"name":"install","args":["%[2]s"]}]},"status":{"phase":"Running",
			"initContainerStatuses":[{"name":"install"%[3]s}]}}`, i+1, verb, state))
	}
	k.write("pods", `{"items":[`+strings.Join(items, ",")+`]}`)
}

// ended is the state of an init container that has ended, and waits for its repetition if it
// failed.
func ended(code int, message string) string {
	text, _ := json.Marshal(message) // a string can always be encoded
	at := map[bool]string{true: "lastState", false: "state"}[code != 0]
	return fmt.Sprintf(`,%q:{"terminated":{"exitCode":%d,"message":%s}}`, at, code, text)
}

// uninstall runs kubectl leasehold uninstall, and returns what it printed and the changes that it
// made.
func (k fakeKubectl) uninstall(flags ...string) (exit int, text string, changes []string) {
	k.t.Helper()
	var out bytes.Buffer
	k.t.Setenv("PATH", k.dir+":"+os.Getenv("PATH"))
	exit = Run(k.t.Context(), Env{Stdout: &out, Stderr: &out, Plugin: true}, append([]string{"uninstall"}, flags...))
	log, err := os.ReadFile(filepath.Join(k.dir, "log"))
	if err != nil {
		k.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if !strings.HasPrefix(line, "get ") && !strings.Contains(line, "--dry-run") {
			changes = append(changes, strings.TrimSpace(line))
		}
	}
	if err := os.Remove(filepath.Join(k.dir, "log")); err != nil {
		k.t.Fatal(err)
	}
	return exit, out.String(), changes
}

func TestUninstallAsksEveryNodeFirst(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(fakeKubectl)
		want  string
	}{
		"a configuration that cannot be put back": {func(k fakeKubectl) {
			k.write("refusal of pod2", "leasectl: /etc/cni/net.d/10-a.conflist: it names leasehold")
		}, "node2: kubectl -n leasehold-system exec pod2 -c agent -- /leasectl --host-root=/proc/1/root uninstall " +
			"--cni-bin-dir=/opt/cni/bin --cni-conf-dir=/conf --dry-run: exit status 1: leasectl: " +
			"/etc/cni/net.d/10-a.conflist: it names leasehold\n"},
		"a node without an agent": {func(k fakeKubectl) { k.pods("install", "") }, "nodes on which no agent runs: 1\n"},
		"a ConfigMap that cannot be put back": {func(k fakeKubectl) {
			k.configMap(`{"name":"cbr0","plugins":[{"type":"flannel","IPAM":{"type":"leasehold"},"ipam":null}]}`)
		}, `ConfigMap kube-flannel-cfg: it names leasehold: /plugins/0/ipam/type cannot be changed`},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKubectl(t)
			c.plant(k)
			exit, text, changes := k.uninstall()
			if exit != 1 || len(changes) > 0 {
				t.Errorf("exit status %d, and it changed %q", exit, changes)
			}
			for _, words := range []string{c.want, "nothing was removed"} {
				if !strings.Contains(text, words) {
					t.Errorf("it prints %s\nwant %q", text, words)
				}
			}
		})
	}
}

// configMap writes flannel's ConfigMap with a CNI configuration.
func (k fakeKubectl) configMap(conf string) {
	k.t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"namespace": "kube-flannel"},
		"data": map[string]any{flannelKey: conf}})
	if err != nil {
		k.t.Fatal(err)
	}
	k.write("configmap", string(text))
}

// TestUninstallEnds removes leasehold from a cluster in which one node does not end the first time.
func TestUninstallEnds(t *testing.T) {
	k := newFakeKubectl(t)
	k.configMap(`{"name":"cbr0","plugins":[{"type":"flannel","ipam":{"type":"leasehold"}}]}`)
	k.pods("uninstall", ended(0, "leasehold is a link"), ended(1, "10.1.0.2 still holds its address\n"),
		`,"state":{"waiting":{"reason":"ImagePullBackOff","message":"no"}}`)
	k.write("late", "timed out")
	exit, text, changes := k.uninstall("--timeout=1m")
	if exit != 1 {
		t.Errorf("exit status %d, want 1", exit)
	}
	for _, words := range []string{"  node1: leasehold is a link\n", "  node2: 10.1.0.2 still holds its address\n",
		"  node3: its pod has not started: ImagePullBackOff: no\n", "--timeout=1m0s: exit status 1: timed out",
		"run this command again, which continues here"} {
		if !strings.Contains(text, words) {
			t.Errorf("it prints %s\nwant %q", text, words)
		}
	}
	steps := []string{"delete mutatingwebhookconfiguration", "delete -n leasehold-system deployment leasehold-manager",
		"patch -n kube-flannel configmap", "rollout restart -n kube-flannel daemonset/kube-flannel-ds",
		`"args":["--host-root=/proc/1/root","uninstall","--cni-bin-dir=/opt/cni/bin","--cni-conf-dir=/conf"]`,
		"rollout status"}
	for _, line := range changes {
		if len(steps) > 0 && strings.Contains(line, steps[0]) {
			steps = steps[1:]
		}
		if strings.HasPrefix(line, "patch -n kube-flannel") && !strings.Contains(line, `[{\"type\":\"flannel\"}]`) {
			t.Errorf("%s: want no ipam section", line)
		}
		if strings.HasPrefix(line, "delete namespace") {
			t.Errorf("%s, although a node is left", line)
		}
	}
	if len(steps) > 0 {
		t.Errorf("it changed %q; want %q", changes, steps)
	}

	if err := os.Remove(filepath.Join(k.dir, "late")); err != nil {
		t.Fatal(err)
	}
	exit, text, changes = k.uninstall("--keep-objects")
	if restart := "rollout restart -n leasehold-system daemonset/leasehold-agent"; exit != 0 ||
		!slices.Contains(changes, restart) || strings.Contains(text, "asking") {
		t.Errorf("the second call: exit status %d, %s\nit changed %q; want %s", exit, text, changes, restart)
	}
	k.write("agent", "")
	if exit, text, _ := k.uninstall(); exit != 1 || !strings.Contains(text, "there is no DaemonSet leasehold-agent") {
		t.Errorf("the third call: exit status %d, %s", exit, text)
	}
}
