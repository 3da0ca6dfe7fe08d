package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// A soakAccident is something that fails on a node, and works again when the accident returns.
type soakAccident struct {
	name   string
	weight int
	do     func(t *Test, n *cluster.Node)
	// harsh accidents restart the agent or the manager. They spare the last node, so that a leak of
	// memory shows there.
	harsh bool
}

var soakAccidents = []soakAccident{
	{"agent-killed", 4, func(t *Test, n *cluster.Node) { t.killSystem(n, cluster.Agent) }, true},
	{"manager-killed", 3, func(t *Test, n *cluster.Node) { t.killSystem(n, cluster.Manager) }, true},
	{"kubelet-restarted", 4, func(t *Test, n *cluster.Node) { t.restart(n, cluster.Kubelet) }, false},
	{"containerd-restarted", 4, func(t *Test, n *cluster.Node) { t.restart(n, cluster.Containerd) }, false},
	{"del-lost", 3, (*Test).loseDEL, false},
	{"cut-off", 3, func(t *Test, n *cluster.Node) {
		t.Must(n.CutOff())
		t.Cleanup(func() { t.Must(n.Reconnect()) })
		t.Sleep(15 * time.Second)
		t.Must(n.Reconnect())
	}, false},
	{"rebooted", 2, func(t *Test, n *cluster.Node) {
		t.powerOff(n)
		t.Sleep(5 * time.Second)
		t.powerOn(n)
	}, true},
	{"api-server-restarted", 1, func(t *Test, _ *cluster.Node) {
		back := t.WithoutControl(cluster.APIServer)
		t.Sleep(5 * time.Second)
		back()
	}, false},
}

// accidents lets an accident happen every minute or so, until ctx is done. Each is a subtest: if
// one fails, the soak goes on.
func (s *soakRun) accidents(ctx context.Context, dice *rand.Rand) {
	var lots []soakAccident
	for _, a := range soakAccidents {
		for range a.weight {
			lots = append(lots, a)
		}
	}
	reported := time.Now()
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(soakCalm + time.Duration(dice.Int64N(int64(soakCalm)))):
		}
		accident := lots[dice.IntN(len(lots))]
		nodes := s.nodes
		if accident.harsh && len(nodes) > 1 {
			nodes = nodes[:len(nodes)-1]
		}
		n := s.Cluster.Node(nodes[dice.IntN(len(nodes))])
		s.T.Run(fmt.Sprintf("%d-%s-%s", i, accident.name, n.Name), func(st *testing.T) {
			limited, cancel := context.WithTimeout(s.Ctx, 5*time.Minute)
			defer cancel()
			t := *s.Test
			t.T, t.Ctx, t.began = st, limited, time.Now()
			accident.do(&t, n)
			t.WaitNode(n, t.began)
			t.Step("%s has recovered", n.Name)
		})
		s.count(accident.name)
		if time.Since(reported) > 10*time.Minute {
			reported = time.Now()
			s.report()
		}
	}
}

// killSystem kills leasehold's own pods of one kind on a node, if there are any that run: after an
// earlier kill, the kubelet may delay the restart.
func (t *Test) killSystem(n *cluster.Node, app string) {
	for _, p := range t.system(app) {
		if p.Spec.NodeName == n.Name {
			for _, c := range t.runningContainers(n, p) {
				t.killPID(n, fmt.Sprint(c.PID))
			}
		}
	}
}

// restart kills a service of a node and starts it again.
func (t *Test) restart(n *cluster.Node, service string) {
	t.Must(n.Kill(t.Ctx, service))
	t.Cleanup(func() { t.runs(n, service) })
	t.runs(n, service)
}

// loseDEL lets a pod end without a DEL.
func (t *Test) loseDEL(n *cluster.Node) {
	name := "lost-" + strconv.FormatInt(time.Now().Unix(), 36)
	t.createPod(t.bare(name, n, KeptFor("")))
	pods := Pods{name: t.running(name)}
	began := time.Now()
	t.forget(n, pods)
	t.forceDelete(pods)
	t.resume(n)
	t.orphaned(n, pods, began)
}
