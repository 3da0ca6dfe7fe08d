package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// hoursEnv is the environment variable with the duration of a soak in hours. A process that has it
// runs the soak instead of the scenarios.
const hoursEnv = "LEASEHOLD_SOAK"

// soakTable is the table of such a process.
var soakTable = []scenario{
	does("soak", "pods are replaced and accidents happen for hours: promises are checked, resources recorded", soak),
}

// soakDuration returns how long the soak has to run, 0 if this process runs scenarios.
func soakDuration() (time.Duration, error) {
	text := os.Getenv(hoursEnv)
	if text == "" {
		return 0, nil
	}
	hours, err := strconv.ParseFloat(text, 64)
	if err != nil || !(hours >= 0.05 && hours <= 1000) {
		return 0, fmt.Errorf("%s=%s: want a number of hours from 0.05 to 1000", hoursEnv, text)
	}
	return time.Duration(hours * float64(time.Hour)), nil
}

// soakMinutes are the window of a soak's pods. One that is not Ready for that long is stuck.
const (
	soakMinutes = "8"
	soakWindow  = 8 * time.Minute
)

// soakAccidents are what happens to a node while pods are replaced.
var soakAccidents = append(slices.Clone(killActions), []accident{
	{"a manager is killed", func(t *Test, _ *cluster.Node, _ corev1.Pod) {
		for _, p := range t.Managers() {
			if p.Spec.NodeName != t.nodes[len(t.nodes)-1] {
				t.Signal(p, "KILL")
				return
			}
		}
	}, false},
	{"a pod ends without a DEL", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		name := "lost-" + strconv.FormatInt(time.Now().Unix(), 36)
		t.createPod(t.bare(name, n, KeptFor("")))
		pods := Pods{name: t.running(name)}
		began := time.Now()
		t.forget(n, pods)
		t.forceDelete(pods)
		t.resume(n)
		t.orphaned(n, pods, began)
	}, false},
	{"the node has no network", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		t.Must(n.CutOff())
		t.Cleanup(func() { t.Must(n.Reconnect()) })
		t.Sleep(15 * time.Second)
		t.Must(n.Reconnect())
	}, false},
	{"the node loses power", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		t.powerOff(n)
		t.Sleep(5 * time.Second)
		t.powerOn(n)
	}, true},
	{"the API server is away", func(t *Test, _ *cluster.Node, _ corev1.Pod) {
		back := t.WithoutControl(cluster.APIServer)
		t.Sleep(5 * time.Second)
		back()
	}, false},
}...)

// soak replaces pods in rounds, and has an accident happen in each. A round ends when all pods run
// with their addresses, and the stores, what is published and the pods agree.
func soak(t *Test) {
	hours, err := soakDuration()
	t.Must(err)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		t.Must(err)
	}
	dice := rand.New(rand.NewPCG(seed, 1))
	t.Step("%v with seed %d", hours, seed)
	kept, victims := []*Set{}, map[string]*Set{} // of each node
	for _, name := range t.nodes {
		kept = append(kept, t.Echoserver("kept-"+name, t.Cluster.Node(name), 4, KeptFor(soakMinutes)))
		victims[name] = t.Echoserver("victim-"+name, t.Cluster.Node(name), 1, KeptFor(soakMinutes))
	}
	free := []*Set{t.Echoserver("free", nil, 6, KeptFor(soakMinutes)),
		t.Echoserver("plain", nil, 3, KeptFor("")), t.Deployment("deployed", nil, 4)}
	sets := slices.Concat(kept, slices.Collect(maps.Values(victims)), free)
	sizes := map[*Set]int{}
	for _, s := range sets {
		sizes[s] = s.size
	}
	go t.watch.History.Name(t.Ctx, t.NS)
	t.Cleanup(t.judgeHistory)
	samples, replaced, rounds := map[string][]float64{}, 0, 0
	for began := time.Now(); time.Since(began) < hours; rounds++ {
		accident, nodes := soakAccidents[dice.IntN(len(soakAccidents))], t.nodes
		if accident.restartsAgent && len(nodes) > 1 {
			nodes = nodes[:len(nodes)-1] // so that a leak of memory shows on the last one
		}
		n := t.Cluster.Node(nodes[dice.IntN(len(nodes))])
		t.Step("round %d: %s: %s", rounds, n.Name, strings.ReplaceAll(accident.name, "POD", "victim"))
		before, deleted := Pods{}, map[*Set]Pods{}
		for _, s := range append(slices.Clone(kept), free...) {
			pods := s.Ready()
			if s.Node != nil {
				maps.Copy(before, pods)
			}
			deleted[s] = s.replaceSome(dice, pods)
			replaced += len(deleted[s])
		}
		for _, s := range victims {
			maps.Copy(before, s.Ready())
		}
		accident.do(t, n, before["victim-"+n.Name+"-0"])
		after := Pods{}
		for _, s := range sets {
			s.Resize(sizes[s])
			maps.Copy(after, s.readyWithin(soakWindow, deleted[s]))
		}
		t.Kept(before, after)
		t.Eventually("stores, reservations and pods agree", t.agree)
		t.checkOverlap()
		t.sample(samples)
	}
	t.Step("%d pods were replaced in %d rounds; all are deleted, and when the windows have ended every address is free",
		replaced, rounds)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	t.Clear()
	t.Within(soakWindow+3*time.Minute, "every address is free", func() error {
		for _, name := range t.nodes {
			leases := slices.DeleteFunc(t.Leases(t.Cluster.Node(name)), func(l cli.Row) bool { return !l.IsHold })
			if len(leases)+len(t.Reservations()) > 0 {
				return fmt.Errorf("%s has %+v", name, leases)
			}
		}
		return t.agree()
	})
	for _, series := range slices.Sorted(maps.Keys(samples)) {
		t.judge(series, samples[series])
	}
}

// judgeHistory writes what was observed in the network namespaces to a file, and has it judged.
func (t *Test) judgeHistory() {
	h := t.watch.History
	file, ops := filepath.Join(t.Cluster.Dir, "run", "history.json"), h.Observations()
	text, err := json.MarshalIndent(ops, "", "  ")
	t.Must(errors.Join(err, os.WriteFile(file, text, 0o644)))
	rejected := inspect.Accepted(ops, func(pod string) bool {
		_, name, _ := strings.Cut(pod, "/")
		return strings.HasPrefix(name, "kept-") || strings.HasPrefix(name, "victim-")
	})
	t.Step("%d observations in %s; a duplicate of more than %v is found; not accepted: %q", len(ops), file,
		h.Resolution().Round(time.Millisecond), rejected)
	if len(rejected) > 0 {
		t.Errorf("the history of %q is not that of addresses with one holder and retained pods", rejected)
	}
}

// replaceSome deletes pods in one of several ways, and returns those that are replaced.
func (s *Set) replaceSome(dice *rand.Rand, pods Pods) Pods {
	names := slices.Sorted(maps.Keys(pods))
	switch dice.IntN(8) {
	case 0:
		s.changeTemplate()
		return pods
	case 1: // away until the accident is over
		s.Resize(0)
		return pods
	case 2:
		s.Delete(pods)
		return pods
	}
	one := names[dice.IntN(len(names))]
	s.Delete(Pods{one: pods[one]})
	return Pods{one: pods[one]}
}

// agree returns an error if a store has an address for another pod than the one that has it, or
// something else is published.
func (t *Test) agree() error {
	pods, err := t.Client.CoreV1().Pods("").List(t.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range t.ownNodes() {
		name := n.Name
		leases, err := inspect.Leases(t.Ctx, n.Machine(), t.Cluster.Leasectl(), true)
		if err != nil {
			return err
		}
		bound, ended := map[string]string{}, map[string]bool{}
		for _, l := range leases {
			if l.State == "Bound" {
				bound[l.Address], ended[l.UID] = l.UID, true
			}
		}
		for _, p := range pods.Items {
			uid := string(p.UID)
			if p.Spec.NodeName == name {
				delete(ended, uid)
			}
			if p.Spec.NodeName == name && !p.Spec.HostNetwork && ready(p) && p.DeletionTimestamp == nil &&
				bound[p.Status.PodIP] != uid {
				return fmt.Errorf("%s has %s, which %s has for %q", p.Name, p.Status.PodIP, name, bound[p.Status.PodIP])
			}
		}
		if len(ended) > 0 {
			return fmt.Errorf("%s has addresses bound to pods that are not there: %v of %+v", name, ended, leases)
		}
		if err := t.inSync(n); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

const mib = 1 << 20

// soakSlack is by how much each series may grow, in addition to a tenth.
var soakSlack = map[string]float64{"go_memstats_heap_inuse_bytes": 4 * mib, "go_goroutines": 10,
	"process_open_fds": 3, "files": 10, "store": 2 * mib, "objects": 5}

// sample adds to the series of what must not grow without bound.
func (t *Test) sample(samples map[string][]float64) {
	add := func(series, where string, value float64) {
		samples[series+" of "+where] = append(samples[series+" of "+where], value)
	}
	for app, port := range map[string]string{cluster.Agent: agentMetrics, cluster.Manager: managerMetrics} {
		for _, p := range t.system(app) {
			if !ready(p) {
				continue
			}
			m, err := scrape(t.Ctx, t.Client, p, port)
			if err != nil {
				continue // it is being restarted
			}
			for _, series := range []string{"go_memstats_heap_inuse_bytes", "go_goroutines", "process_open_fds"} {
				add(series, app+" on "+p.Spec.NodeName, m.Sum(series))
			}
		}
	}
	for _, name := range t.nodes {
		for series, command := range map[string]string{"store": "stat -c %s /var/lib/leasehold/leases.db",
			"files": "find /var/lib/leasehold /run/leasehold /var/lib/cni/networks -type f | wc -l"} {
			value, err := strconv.ParseFloat(strings.TrimSpace(t.exec(t.Cluster.Node(name), "sh", "-c", command)), 64)
			t.Must(err)
			add(series, name, value)
		}
	}
	for _, kind := range []string{"ipr", "nap", "pps", "leases"} {
		add("objects", kind, float64(strings.Count(t.Kubectl("get", "-A", kind, "-o", "name"), "\n")))
	}
}

// judge fails the soak if a series grows: the median of the last quarter is compared with that of
// the second, because programs grow while they start.
func (t *Test) judge(series string, values []float64) {
	quarter := len(values) / 4
	if quarter < 10 {
		t.Step("%s: %d samples are too few", series, len(values))
		return
	}
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	before, after := median(values[quarter:2*quarter]), median(values[3*quarter:])
	t.Step("%s: %.4g in the second quarter, %.4g in the last, at most %.4g", series, before, after, slices.Max(values))
	name, _, _ := strings.Cut(series, " ")
	if after > before*1.1+soakSlack[name] {
		t.Errorf("%s grows without bound", series)
	}
}
