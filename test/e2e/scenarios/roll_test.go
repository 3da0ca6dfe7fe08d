package scenarios

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// roundsEnv is the environment variable with the number of rounds of a comparison of rollouts. A
// process that has it runs the comparison instead of the scenarios.
const roundsEnv = "LEASEHOLD_ROLL"

// rollTable is the table of such a process.
var rollTable = []scenario{
	ours("roll", "100 pods of a StatefulSet start and are rolled, with host-local and with leasehold", roll),
}

const (
	rollSize = 100
	// rollLimit is more than the time in which one of the two plugins starts and rolls the pods.
	rollLimit = 20 * time.Minute
)

// rollRounds returns the number of rounds of a comparison, 0 if this process runs scenarios.
func rollRounds() (int, error) {
	text := os.Getenv(roundsEnv)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 20 {
		return 0, fmt.Errorf("%s=%s: want a number of rounds from 1 to 20", roundsEnv, text)
	}
	return n, nil
}

// A rollout is what was measured with one plugin in one round.
type rollout struct {
	plugin       string
	start, whole time.Duration   // until all pods are Ready: created at once, and rolled one by one
	pods         []time.Duration // from the deletion of each pod to Ready of the next one
	same         int             // pods with the same address after the rollout
	kubelet      kubeletTimes    // of all sandboxes and pods that were started
}

// kubeletTimes are what the kubelets of all nodes measured since they started.
type kubeletTimes struct{ sandboxes, pods observed }

// observed is the number of values in a histogram, and their sum in seconds.
type observed struct{ count, sum float64 }

func (o observed) minus(before observed) observed {
	return observed{o.count - before.count, o.sum - before.sum}
}

func (o observed) mean() float64 { return o.sum / max(o.count, 1) }

func (k kubeletTimes) minus(before kubeletTimes) kubeletTimes {
	return kubeletTimes{k.sandboxes.minus(before.sandboxes), k.pods.minus(before.pods)}
}

// measuredByKubelets scrapes the kubelets.
func (t *Test) measuredByKubelets() (k kubeletTimes) {
	for _, node := range t.nodes {
		text, err := t.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").
			Suffix("metrics").DoRaw(t.Ctx)
		t.Must(err)
		metrics, err := inspect.ReadMetrics(bytes.NewReader(text))
		t.Must(err)
		for name, to := range map[string]*observed{
			"kubelet_run_podsandbox_duration_seconds": &k.sandboxes, // the CNI ADD is a part of it
			"kubelet_pod_start_sli_duration_seconds":  &k.pods,      // from creation to started containers
		} {
			if !metrics.Has(name) {
				t.Fatalf("the kubelet of %s has no metric %s", node, name)
			}
			count, sum := metrics.Observed(name)
			to.count, to.sum = to.count+count, to.sum+sum
		}
	}
	return k
}

// roll starts and rolls a StatefulSet with each plugin, in random order in each round.
func roll(t *Test) {
	rounds, err := rollRounds()
	t.Must(err)
	var all []rollout
	for round := range rounds {
		plugins := []string{"host-local", "leasehold"}
		rand.Shuffle(len(plugins), func(i, j int) { plugins[i], plugins[j] = plugins[j], plugins[i] })
		for _, plugin := range plugins {
			r := rollWith(t, plugin, round)
			t.Step("round %d, %s: all Ready after %.1f s, rolled in %.1f s", round+1, plugin, r.start.Seconds(),
				r.whole.Seconds())
			all = append(all, r)
		}
	}
	fmt.Println("\n" + rollReport(all))
	for _, r := range all {
		if want := map[string]int{"leasehold": rollSize}[r.plugin]; r.same < want {
			t.Lostf("%d of %d pods have the same address after a rollout", r.same, rollSize)
		}
	}
}

// rollWith starts and rolls a StatefulSet with one plugin, in networks of its own and under a name
// of its own, so that no pod returns to what is held from an earlier round.
func rollWith(t *Test, plugin string, round int) rollout {
	network := "roll-" + plugin
	name := fmt.Sprintf("%s-%d", network, round)
	for _, node := range t.nodes {
		n := t.Cluster.Node(node)
		third := byte(2 * n.Index)
		if plugin == "leasehold" {
			third++
		}
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, third, 0}), 24)
		t.Must(n.SetNetworks(cluster.Network{Name: network, Type: "bridge", Subnets: []netip.Prefix{subnet},
			IPAM: map[string]any{"type": plugin}}))
		defer func() {
			t.Must(n.SetNetworks(n.DefaultNetwork()))
			t.Must(n.RemoveBridge(t.Ctx, cluster.Network{Name: network}))
		}()
	}
	already := t.measuredByKubelets()
	began := time.Now()
	set := t.createEchoserver(name, nil, rollSize)
	before := set.readyWithin(rollLimit, nil)
	r := rollout{plugin: plugin, start: time.Since(began)}
	ctx, stop := context.WithCancel(t.Ctx)
	var watching sync.WaitGroup
	watching.Go(func() { r.pods = replacements(ctx, t, name) })
	began = time.Now()
	set.changeTemplate()
	after := set.readyWithin(rollLimit, before)
	r.whole = time.Since(began)
	stop()
	watching.Wait()
	r.kubelet = t.measuredByKubelets().minus(already)
	for name, p := range after {
		if addresses(p) == addresses(before[name]) {
			r.same++
		}
	}
	t.Clear()
	return r
}

// replacements watches the pods of a workload until ctx is done. It returns how long it took from
// each deletion to Ready of the pod with the same name.
func replacements(ctx context.Context, t *Test, app string) (took []time.Duration) {
	w, err := t.Client.CoreV1().Pods(t.NS).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Logf("watching the pods: %v", err)
		return nil
	}
	defer w.Stop()
	type deleted struct {
		uid types.UID
		at  time.Time
	}
	last := map[string]deleted{}
	for {
		var e watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return took
		case e, open = <-w.ResultChan():
		}
		p, isPod := e.Object.(*corev1.Pod)
		if !open || !isPod {
			return took // fewer than all: the report says how many
		}
		before, known := last[p.Name]
		switch {
		case p.DeletionTimestamp != nil && before.uid != p.UID:
			last[p.Name] = deleted{p.UID, time.Now()}
		case known && before.uid != p.UID && ready(*p):
			took = append(took, time.Since(before.at))
			delete(last, p.Name)
		}
	}
}

// rollReport returns the table of a comparison, the rounds of one plugin after those of the other.
func rollReport(all []rollout) string {
	var b strings.Builder
	b.WriteString("| plugin | created: all Ready after, s | rolled one by one in, s | " +
		"deletion to Ready, s: p50, p99, max | by the kubelets, means, s: sandbox, pod | " +
		"pods with the same address |\n|---|---|---|---|---|---|\n")
	slices.SortStableFunc(all, func(x, y rollout) int { return strings.Compare(x.plugin, y.plugin) })
	for _, r := range all {
		slices.Sort(r.pods)
		of := func(share float64) float64 {
			if len(r.pods) == 0 {
				return 0
			}
			return r.pods[int(share*float64(len(r.pods)-1))].Seconds()
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.2f, %.2f, %.2f of %d pods | %.3f of %.0f, %.2f of %.0f | %d of %d |\n",
			r.plugin, r.start.Seconds(), r.whole.Seconds(), of(0.5), of(0.99), of(1), len(r.pods),
			r.kubelet.sandboxes.mean(), r.kubelet.sandboxes.count, r.kubelet.pods.mean(), r.kubelet.pods.count, r.same,
			rollSize)
	}
	return b.String()
}
