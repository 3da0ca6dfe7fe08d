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

// fakeKubectl is a cluster of nodes for kubectl leasehold uninstall: a program that logs its
// arguments, and prints the objects that the test has written.
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
get*"daemonset leasehold-agent") test ! -e agent || cat agent ;;
get*"daemonset leasehold-uninstall") test ! -e mode || cat daemon-$(cat mode) ;;
get*"pod -l app.kubernetes.io/name=leasehold-uninstall") cat pods-$(cat mode) ;;
get*"configmap kube-flannel-cfg") test ! -e configmap || cat configmap ;;
get*"kube-flannel daemonset") echo '{"items":[{"metadata":{"name":"kube-flannel-ds"},"spec":{"template":{"spec":
	{"volumes":[{"configMap":{"name":"kube-flannel-cfg"}}]}}}}]}' ;;
get*" nodes") cat nodes ;;
"apply -f -") cat >applied; if grep -q -e --dry-run applied; then echo ask >mode; else echo remove >mode; fi ;;
delete*"daemonset leasehold-agent "*) rm -f agent ;;
delete*"daemonset leasehold-uninstall "*) rm mode ;;
esac
`)
	k.write("agent", `{"metadata":{"namespace":"leasehold-system"},"spec":{"template":{"spec":{
		"initContainers":[{"name":"install","args":["install","--cni-bin-dir=/opt/cni/bin"]}],"containers":[{"name":"agent"}]}}}}`)
	for mode, flag := range map[string]string{"ask": `,"--dry-run"`, "remove": ""} {
		k.write("daemon-"+mode, `{"metadata":{"generation":1,"uid":"new"},"status":{"observedGeneration":1,
			"desiredNumberScheduled":2},"spec":{"template":{"spec":{"initContainers":[{"name":"leasehold-uninstall",
			"args":["uninstall"`+flag+`]}]}}}}`)
		k.pods(mode, ended(0, ""), ended(0, ""))
	}
	k.write("nodes", `{"items":[`+node("node1", "True")+`,`+node("node2", "True")+`]}`)
	return k
}

func (k fakeKubectl) write(name, text string) {
	k.t.Helper()
	if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o755); err != nil {
		k.t.Fatal(err)
	}
}

// pods writes the pods of the uninstaller, of node1 and node2, which ask or remove.
func (k fakeKubectl) pods(mode string, states ...string) {
	k.t.Helper()
	var items []string
	for i, state := range states {
		flag := map[string]string{"ask": `"--dry-run"`, "remove": ""}[mode]
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"leasehold-uninstall-%d",
			"ownerReferences":[{"uid":"new"}]},"spec":{"nodeName":"node%d","initContainers":[
			{"name":"leasehold-uninstall","args":[%s]}]},"status":{"initContainerStatuses":[%s]}}`, i+1, i+1, flag, state))
	}
	// Another DaemonSet of the same name was there before, and its pods are not deleted yet.
	former := strings.NewReplacer(`"new"`, `"old"`, states[0], ended(1, "of a former call"))
	items = append(items, former.Replace(items[0]))
	k.write("pods-"+mode, `{"items":[`+strings.Join(items, ",")+`]}`)
}

// ended is the status of an installer that has ended, and waits for its repetition if it failed.
func ended(code int, message string) string {
	text, _ := json.Marshal(message) // a string can always be encoded
	at := map[bool]string{true: "lastState", false: "state"}[code != 0]
	return fmt.Sprintf(`{"name":"leasehold-uninstall",%q:{"terminated":{"exitCode":%d,"message":%s}}}`, at, code, text)
}

func node(name, ready string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[{"type":"Ready","status":%q,
		"message":"Kubelet stopped posting node status."}]}}`, name, ready)
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
		if !strings.HasPrefix(line, "get ") {
			changes = append(changes, strings.TrimSpace(line))
		}
	}
	if err := os.Remove(filepath.Join(k.dir, "log")); err != nil {
		k.t.Fatal(err)
	}
	return exit, out.String(), changes
}

// asked are the changes of a call that only asks the nodes.
var asked = []string{"apply -f -",
	"delete -n leasehold-system daemonset leasehold-uninstall --wait=false --ignore-not-found"}

func TestUninstallAsksEveryNodeFirst(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(fakeKubectl)
		want  []string // on the terminal
		asks  bool     // whether the nodes are asked
	}{
		{"a configuration that cannot be put back", func(k fakeKubectl) {
			k.pods("ask", ended(0, ""), ended(1, "/etc/cni/net.d/10-a.conflist: it names leasehold\nand another\n"))
		}, []string{"leasehold cannot be removed from these nodes:\n  node2: /etc/cni/net.d/10-a.conflist: it names " +
			"leasehold; and another\n"}, true},
		{"an installer that says nothing", func(k fakeKubectl) { k.pods("ask", ended(0, ""), ended(2, "")) },
			[]string{"node2: its pod leasehold-uninstall-2 has failed with exit code 2"}, true},
		{"a node that is down", func(k fakeKubectl) {
			k.pods("ask", ended(0, ""), "{}")
			k.write("nodes", `{"items":[`+node("node1", "True")+`,`+node("node2", "Unknown")+`]}`)
		}, []string{"  waiting for node2: the node does not answer (Kubelet stopped posting node status.); start it, " +
			"or, if it does not come back, delete it with kubectl delete node node2\n",
			"leasehold cannot be removed from these nodes:"}, true},
		{"an image that cannot be pulled, and a limit of time", func(k fakeKubectl) {
			k.pods("ask", `{"name":"leasehold-uninstall","state":{"waiting":{"reason":"ImagePullBackOff",
				"message":"no"}}}`)
		}, []string{"these nodes have not ended after 1s:\n  node1: its pod has not started: ImagePullBackOff: no\n" +
			"  nodes without a pod of the DaemonSet leasehold-uninstall: 1"}, true},
		{"a ConfigMap that cannot be put back", func(k fakeKubectl) {
			k.configMap(`{"name":"cbr0","plugins":[{"type":"flannel","IPAM":{"type":"leasehold"},"ipam":null}]}`)
		}, []string{`ConfigMap kube-flannel-cfg: it names leasehold: /plugins/0/ipam/type cannot be changed`}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFakeKubectl(t)
			c.plant(k)
			limit := "1h"
			if strings.Contains(c.name, "limit of time") {
				limit = "1s"
			}
			exit, text, changes := k.uninstall("--timeout=" + limit)
			want := []string(nil)
			if c.asks {
				want = asked
			}
			if exit != 1 || !slices.Equal(changes, want) {
				t.Errorf("exit status %d, and it changed %q; want %q", exit, changes, want)
			}
			for _, words := range append(c.want, "nothing was removed") {
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
	const edited = `{"name":"cbr0","plugins":[{"type":"flannel","ipam":{"type":"leasehold"}}]}`
	k.configMap(edited)
	k.pods("ask", ended(0, "conf was edited by hand"), ended(0, ""))
	k.pods("remove", ended(0, "leasehold is a link"), ended(1, "10.1.0.2 still holds its address"))
	exit, text, changes := k.uninstall("--timeout=1s")
	if exit != 1 {
		t.Errorf("exit status %d, want 1", exit)
	}
	for _, words := range []string{"  node1: conf was edited by hand\n", "can be removed from all nodes\n",
		"  node1: leasehold is a link\n",
		"these nodes have not ended after 1s:\n  node2: 10.1.0.2 still holds its address\n",
		"run this command again, which continues here"} {
		if !strings.Contains(text, words) {
			t.Errorf("it prints %s\nwant %q", text, words)
		}
	}
	applied, err := os.ReadFile(filepath.Join(k.dir, "applied"))
	if err != nil || !strings.Contains(string(applied), `"automountServiceAccountToken":false`) {
		t.Errorf("%v; the pods on the nodes have a token of the API, which they do not use:\n%s", err, applied)
	}
	steps := []string{"apply -f -", "delete mutatingwebhookconfiguration", "patch -n kube-flannel configmap",
		"rollout restart -n kube-flannel daemonset/kube-flannel-ds",
		"delete -n leasehold-system daemonset leasehold-agent", "apply -f -"}
	for _, line := range changes {
		if len(steps) > 0 && strings.HasPrefix(line, steps[0]) {
			steps = steps[1:]
		}
		if strings.HasPrefix(line, "patch") && (!strings.Contains(line, `\"host-local\"`) ||
			!strings.Contains(line, `"leasehold.dev/before-uninstall":`)) {
			t.Errorf("%s: want host-local, and the former configuration in an annotation", line)
		}
		if strings.HasPrefix(line, "delete namespace") {
			t.Errorf("%s, although a node is left", line)
		}
	}
	if len(steps) > 0 {
		t.Errorf("it changed %q; want %q at the end of it", changes, steps)
	}

	k.pods("remove", ended(0, ""), ended(0, ""))
	exit, text, changes = k.uninstall("--timeout=1h", "--keep-objects")
	if restart := "rollout restart -n leasehold-system daemonset/leasehold-uninstall"; exit != 0 ||
		!slices.Contains(changes, restart) {
		t.Errorf("the second call: exit status %d, %s\nit changed %q; want %s", exit, text, changes, restart)
	}
	if exit, text, _ := k.uninstall(); exit != 1 || !strings.Contains(text, "there is no DaemonSet leasehold-agent") {
		t.Errorf("the third call: exit status %d, %s", exit, text)
	}
}
