package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/built"
)

// allowed are all forms that a repair may have, and why it can do no harm. What is added here is
// run by people who have not read why it is printed.
var allowed = map[string]string{
	`leasectl install --conf=\S+ --cni-bin-dir=\S+ --yes`: "one word in a file; refused without the plugin, " +
		"and where a plugin may call host-local only",
	`leasectl install --conf=\S+ --pod-annotations --yes`:                         "a key that plugins ignore",
	`leasectl recover( --data-dir=\S+)?( --network=\S+)?`:                         "what the next ADD does by itself",
	`kubectl -n \S+ rollout restart (daemonset/\S+-agent|deployment/\S+-manager)`: "nothing waits for their pods",
	`kubectl -n \S+ delete pod leasehold-agent-\S+`:                               "its DaemonSet creates it again",
}

// checkRule returns an error unless a finding has either something to decide or repairs of an
// allowed form.
func checkRule(f finding) error {
	if (len(f.Repair) > 0) == (f.Decide != "") {
		return fmt.Errorf("%s has not either a repair or a decision: %+v", f.Reason, f)
	}
	for _, line := range f.Repair {
		isAllowed := slices.ContainsFunc(slices.Collect(maps.Keys(allowed)), func(form string) bool {
			return regexp.MustCompile("^" + form + "$").MatchString(line)
		})
		if !isAllowed {
			return fmt.Errorf("%s has a repair of another form: %s", f.Reason, line)
		}
	}
	return nil
}

// TestRepairsDoNoHarm has the checks make findings of every reason that the sources name, in the
// variants that lead to different repairs.
func TestRepairsDoNoHarm(t *testing.T) {
	seen := map[string]bool{}
	check := func(about string, found []finding) {
		t.Helper()
		for _, f := range found {
			seen[f.Reason] = true
			if err := checkRule(f); err != nil {
				t.Errorf("%s: %v", about, err)
			}
		}
	}
	plugin := filepath.Join(t.TempDir(), "leasehold")
	if err := os.WriteFile(plugin, built.Plugin(t), 0o755); err != nil {
		t.Fatal(err)
	}
	for reason := range inactive(t) {
		check("advice", advices(t, plugin, reason))
	}
	check("node", nodeFindings(t))
	for about, f := range clusters() {
		c := newCluster(t, f.answers)
		c.Clock = func() lease.Instant { return lease.Instant{Wall: time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)} }
		found := c.examine(t.Context(), true).Findings
		check(about, found)
		var reasons []string
		for _, f := range found {
			if f.Reason != "ObjectMissing" {
				reasons = append(reasons, f.Reason)
			}
		}
		if !slices.Equal(reasons, f.want) {
			t.Errorf("%s: found %q, want %q", about, reasons, f.want)
		}
	}
	want := inactive(t)
	for _, match := range find(t, ".", `(?:Reason:|Reason =|Reason, f\.What =)\s+"(\w+)"`) {
		want[match] = true
	}
	want["PodWithoutLease"] = true
	for reason := range want {
		if !seen[reason] {
			t.Errorf("no finding has the reason %s: the test does not see what doctor prints for it", reason)
		}
	}
}

// find returns what the first group of a regular expression matches in the sources of a package.
func find(t *testing.T, dir, expression string) (all []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(string(text), -1) {
			all = append(all, match[1])
		}
	}
	return all
}

// inactive returns the reasons of package cniconf for which leasehold is not active.
func inactive(t *testing.T) map[string]bool {
	t.Helper()
	reasons := map[string]bool{}
	for _, name := range find(t, "../cniconf", `set\(Inactive, (\w+),`) {
		reasons[name] = true
	}
	for _, name := range find(t, "../cniconf", `(?:return Inactive, |State: Inactive, Reason: )(\w+),`) {
		reasons[name] = true
	}
	if len(reasons) < 9 {
		t.Fatalf("package cniconf has the reasons %v; the test expects at least nine", reasons)
	}
	return reasons
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newProc returns a /proc that shows only this process.
func newProc(t *testing.T) string {
	t.Helper()
	proc := t.TempDir()
	must(t, os.Mkdir(filepath.Join(proc, strconv.Itoa(os.Getpid())), 0o755))
	return proc
}

// advices returns the findings about a network for which leasehold is not active: with and without
// the plugin, another configuration that names leasehold, an agent, and a plugin that
// calls leasehold, and whether that is known. plugin is the path of the plugin.
func advices(t *testing.T, plugin, reason string) (all []finding) {
	t.Helper()
	for variant := range 32 {
		has := func(i int) bool { return variant&(1<<i) > 0 }
		dir := t.TempDir()
		n := &nodeDoctor{Runtime: cniconf.Runtime{BinDirs: []string{dir}}}
		s := cniconf.Status{Reason: reason, File: filepath.Join(dir, "10-net.conflist"), CanName: has(0),
			Binary: filepath.Join(dir, "leasehold")}
		if has(1) {
			must(t, os.Symlink(plugin, s.Binary))
		}
		if has(2) {
			other := filepath.Join(dir, "20-net.conflist")
			content := `{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"leasehold"}}]}`
			must(t, os.WriteFile(other, []byte(content), 0o600))
			n.conf = cniconf.Load(dir, cniconf.Rules{})
		}
		f := finding{Reason: reason}
		var unknown error
		if has(4) {
			unknown = errors.New("/proc cannot be read")
		}
		f.Repair, f.Decide = n.advise(s, has(3), unknown)
		if strings.Contains(f.Decide, "no agent runs") && unknown != nil {
			t.Errorf("%s: %q, where that is not known", reason, f.Decide)
		}
		if len(f.Repair) > 0 && strings.Contains(f.Repair[0], "--cni-bin-dir") && !(has(0) && has(1)) {
			t.Errorf("%s: %q, where leasehold would not be found or not be called", reason, f.Repair)
		}
		if slices.Contains(f.Repair, restartAgents) && !has(3) {
			t.Errorf("%s: %q, where no agent runs", reason, f.Repair)
		}
		all = append(all, f)
	}
	return all
}

// nodeFindings returns findings of all other checks of a node.
func nodeFindings(t *testing.T) (all []finding) {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must(t, errors.Join(os.Mkdir(path("conf"), 0o755), os.WriteFile(path("conf/10-net.conflist"),
		[]byte(`{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"leasehold"}}]}`), 0o600),
		os.WriteFile(path("leasehold"), built.Plugin(t), 0o755)))
	now := lease.Instant{Wall: time.Now(), BootID: "b"}
	subnet, err := pool.NewRange(netip.MustParsePrefix("10.0.0.0/24"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	must(t, err)
	set, err := pool.NewSet(subnet)
	must(t, err)
	var state content
	for i, network := range []string{"net", "bound", "held"} {
		l := lease.Lease{Pool: lease.Pool{DataDir: path("data"), Network: network}, State: lease.Bound,
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Holder: lease.Holder{ContainerID: network}}
		if network == "held" {
			l.State, l.Holder, l.Window = lease.Held, lease.Holder{}, lease.Forever
		}
		state.leases = append(state.leases, l)
		state.usage = append(state.usage, store.Usage{Pool: l.Pool, Ranges: set})
	}
	n := &nodeDoctor{app: &app{Env: Env{Dirs: store.Dirs{State: path("state"), Run: path("run")},
		Host: host.New(newProc(t), ""), Clock: func() lease.Instant { return now }}}, state: state,
		Runtime: cniconf.Runtime{BinDirs: []string{dir}}, conf: cniconf.Load(path("conf"), cniconf.Rules{})}
	run := func(check func(context.Context) ([]finding, error)) {
		found, err := check(t.Context())
		must(t, err)
		all = append(all, found...)
	}
	n.networks = cniconf.Check(n.conf, n.BinDirs)
	run(n.checkConfiguration)
	run(n.checkRanges)
	run(n.checkAddresses)
	must(t, os.WriteFile(path("conf/10-net.conflist"), []byte(`{"name":"net","plugins":[{"type":"bridge","ipam":{
		"type":"leasehold","subnet":"10.0.0.0/30","dataDir":"`+path("data")+`"}}]}`), 0o600))
	n.networks = cniconf.Check(cniconf.Load(path("conf"), cniconf.Rules{}), n.BinDirs)
	for _, l := range []lease.Lease{
		{State: lease.Bound, Holder: lease.Holder{ContainerID: "c"}},
		{State: lease.Bound, Holder: lease.Holder{Netns: lease.Netns{Ino: 1}}},
		{State: lease.Held, Firm: true, Hold: lease.Forever},
	} {
		l.Pool, l.Address = state.leases[0].Pool, netip.MustParseAddr("10.0.0.2")
		n.state = content{leases: []lease.Lease{l}}
		run(n.checkAddresses)
	}
	for _, n.state = range []content{{err: store.ErrNewer}, {err: store.ErrLost}, {lost: "it was removed"},
		{wrong: []string{"index"}}} {
		run(n.checkStore)
	}
	for _, access := range []error{syscall.EROFS, syscall.EACCES, nil} {
		for _, of := range []string{"state", "run"} {
			all = append(all, judgeDirectory(path(of), dir, access, unix.Statfs_t{Bsize: 4096}))
		}
	}
	return all
}

// clusters returns what kubectl prints in clusters with faults, and the reasons that doctor has to
// find beside that of missing objects, each once.
func clusters() map[string]faulty {
	const none, ready = "", `"status":{"conditions":[{"type":"Ready","status":"True"}]}`
	list := func(items ...string) string { return `{"items":[` + strings.Join(items, ",") + `]}` }
	annotated := func(own, template string) string {
		return list(fmt.Sprintf(`{"metadata":{"namespace":"a","name":"b","annotations":{%s}},
			"spec":{"template":{"metadata":{"annotations":{%s}}}}}`, own, template))
	}
	node := func(status string) string { return list(`{"metadata":{"name":"node1"},` + status + `}`) }
	agent := func(status string) string {
		return list(`{"metadata":{"name":"leasehold-agent-x"},"spec":{"nodeName":"node1"},"status":{` +
			`"startTime":"2025-01-01T00:00:00Z",` + status + `}}`)
	}
	waits := func(reason string) string {
		return `"initContainerStatuses":[{"name":"install","image":"leasehold/agent:devel","state":{"waiting":{` +
			`"reason":"` + reason + `"}}}]`
	}
	workload := func(container, tag string, replicas int) string {
		return fmt.Sprintf(`{"spec":{"replicas":%d,"template":{"spec":{"containers":[{"name":%q,"image":
			"r.example:5000/leasehold/x:%s@sha256:0"}]}}},"status":{"readyReplicas":%[1]d}}`, replicas, container, tag)
	}
	endpoints := list(`{"endpoints":[{"conditions":{"ready":true}}]}`)
	pool := func(active, reason string) string {
		network := `{"name":"b","active":"` + active + `"`
		if active != "True" {
			network += `,"reason":"` + reason + `"`
		}
		return list(`{"metadata":{"name":"node1"},"status":{"networks":[` + network + `}],"conditions":[{` +
			`"type":"RetentionActive","status":"` + active + `","reason":"` + reason + `"}]}}`)
	}
	flannel := func(section string) string {
		text, _ := json.Marshal(`{"name":"cbr0","plugins":[{"type":"flannel"` + section + `}]}`)
		return `{"metadata":{"namespace":"kube-flannel"},"data":{"cni-conf.json":` + string(text) + `}}`
	}
	rejected := func(replicas int, annotations string) answers {
		event := func(kind, message string) string {
			return fmt.Sprintf(`{"involvedObject":{"kind":%q,"namespace":"a","name":"b"},"message":%q}`, kind, message)
		}
		return answers{"events": list(event("Job", "denied"), event("ReplicaSet", "exceeded quota"),
			event("StatefulSet", "ValidatingAdmissionPolicy 'nodes' denied request: no node names"),
			event("StatefulSet", "ValidatingAdmissionPolicy 'nodes' denied request: no node names")),
			"statefulsets.apps b": fmt.Sprintf(`{"spec":{"replicas":%d,"template":{"metadata":{"annotations":{%s}}}},
			"status":{"replicas":2}}`, replicas, annotations)}
	}
	all := map[string]faulty{
		"nothing is installed": {answers{"mutatingwebhookconfiguration": none, "deployment": none,
			"daemonset": none}, nil},
		"the manager is scaled to zero": {answers{"deployment": workload("manager", "v1", 0)}, []string{"ManagerDown"}},
		"no manager is ready":           {answers{"deployment": `{"spec":{"replicas":2}}`}, []string{"ManagerDown"}},
		"the webhook has no endpoints": {answers{"deployment": workload("manager", "v1", 2),
			"endpointslice": list(`{"endpoints":[{"conditions":{"ready":false}}]}`)},
			[]string{"WebhookWithoutEndpoints"}},
		"a new manager beside old agents": {answers{"deployment": workload("manager", "v2", 2),
			"endpointslice": endpoints, "daemonset": workload("agent", "v1", 0)}, []string{"VersionsDiffer"}},
		"the same version": {answers{"deployment": workload("manager", "v1", 2), "endpointslice": endpoints,
			"daemonset": workload("agent", "v1", 0)}, nil},
		"an agent is not ready": {answers{"node -l": node(ready), "pod -l": agent(`"phase":"Pending"`)},
			[]string{"AgentNotReady"}},
		"an agent starts": {answers{"node -l": node(ready), "pod -l": strings.Replace(agent(`"phase":""`),
			"2025-01-01", "2026-01-01", 1)}, nil},
		"an agent has no rights": {answers{"node -l": node(ready), "pod -l": agent(`"phase":"Pending"`),
			"logs": `level=WARN msg="..." err="nodes is forbidden"`}, []string{"AgentForbidden"}},
		"an image is missing": {answers{"node -l": node(ready), "pod -l": agent(waits("ErrImageNeverPull"))},
			[]string{"AgentImageMissing"}},
		"an installer fails": {answers{"node -l": node(ready), "pod -l": agent(waits("CrashLoopBackOff"))},
			[]string{"AgentNotReady"}},
		"a node has no agent": {answers{"node -l": node(ready), "daemonset": workload("agent", "v1", 0)},
			[]string{"AgentMissing"}},
		"a node is out of reach": {answers{"node -l": node(`"status":{"conditions":[{"type":"Ready",` +
			`"status":"Unknown","message":"Kubelet stopped posting node status."}]}`), "exec": "no answer",
			"pod -l": agent(`"phase":"Running"`)},
			[]string{"NodeNotReady"}},
		"a network that is not leasehold's": {answers{"nodeaddresspools": pool("False", "HostLocalNamed")},
			[]string{"HostLocalNamed"}},
		"a node shares addresses": {answers{"nodeaddresspools": strings.Replace(pool("True", "Named"), `"conditions":[`,
			`"conditions":[{"type":"AddressesShared","status":"True"},`, 1)}, []string{"AddressesShared"}},
		"a pod without a lease": {answers{"nodeaddresspools": pool("False", "PodWithoutLease")},
			[]string{"PodWithoutLease"}},
		"flannel's manifest was applied again": {answers{"nodeaddresspools": pool("True", "Named"),
			"kube-flannel-cfg": flannel("")}, []string{"FlannelConfigMap"}},
		"flannel's ConfigMap names leasehold": {answers{"nodeaddresspools": pool("True", "Named"),
			"kube-flannel-cfg": flannel(`,"ipam":{"type":"leasehold"}`)}, nil},
		"flannel calls host-local, which is leasehold": {answers{"nodeaddresspools": pool("True", "Replaced"),
			"kube-flannel-cfg": flannel("")}, nil},
		"reservations that cannot be decoded": {answers{"ipreservations": list(
			`{"metadata":{"namespace":"a","name":"good"},"status":{"heldUntil":"2026-11-29T08:00:00Z"}}`,
			`{"metadata":{"namespace":"a","name":"bound"},"status":{}}`,
			`{"metadata":{"namespace":"a","name":"lower"},"status":{"heldUntil":"2026-11-29t08:00:00z"}}`,
			`{"metadata":{"namespace":"a","name":"list"},"status":{"heldUntil":[]}}`)},
			[]string{"ObjectUndecodable", "ObjectUndecodable"}},
		"a NodeAddressPool that cannot be decoded": {answers{"nodeaddresspools": list(`{"metadata":{"name":"node1"},
			"status":{"conditions":[{"lastTransitionTime":"2026-11-29T08:00:00Z"},
			{"lastTransitionTime":"2026-11-29T08:00:00+99:99"}]}}`)}, []string{"ObjectUndecodable"}},
		"limits": {answers{"configmap leasehold-limits": `{"data":{"maxHeld":"some"}}`}, []string{"LimitsInvalid"}},
		"a key that nothing reads": {answers{"statefulsets": annotated("", `"reserved-ip-duration":"1"`)},
			[]string{"AnnotationUnread"}},
		"a policy rejects a pinned pod": {rejected(3, `"io.kubernetes.cri/reserved-ip-duration":"10m"`),
			[]string{"PodRejected"}},
		"a policy rejected a pod, and all exist":  {rejected(2, `"io.kubernetes.cri/reserved-ip-duration":"10m"`), nil},
		"a policy rejects a pod without a window": {rejected(3, ""), nil},
		"an annotation of the set": {
			answers{"statefulsets": annotated(`"io.kubernetes.cri/reserved-ip-duration":"1"`, "")},
			[]string{"AnnotationUnread"}},
	}
	for _, f := range all {
		for words, healthy := range (answers{"deployment": workload("manager", "v1", 2), "endpointslice": endpoints}) {
			if _, has := f.answers[words]; !has {
				f.answers[words] = healthy
			}
		}
	}
	return all
}

// answers are what kubectl prints, by words of its arguments.
type answers map[string]string

// faulty is a cluster with a fault.
type faulty struct {
	answers
	want []string
}
