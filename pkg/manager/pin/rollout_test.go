package pin

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
)

// A replica sees the events of pods and of reservations in their order, each a while after it
// happened.
type replica struct {
	*cluster
	pods, reservations int // how many events it has seen
}

// rollouts is a cluster in which all pods of a reservation name are replaced at once, again and
// again, and two replicas that admit the new ones.
type rollouts struct {
	t            *rapid.T
	replicas     [2]replica
	pods         []func(*cluster)
	reservations []func(*cluster)
	version      int
	clock        time.Time
	sole         bool // the second replica admits no pods, and several old ones are on one node
}

func (r *rollouts) see(i int, pods, reservations int) {
	for ; r.replicas[i].pods < pods; r.replicas[i].pods++ {
		r.pods[r.replicas[i].pods](r.replicas[i].cluster)
	}
	for ; r.replicas[i].reservations < reservations; r.replicas[i].reservations++ {
		r.reservations[r.replicas[i].reservations](r.replicas[i].cluster)
	}
}

func (r *rollouts) next() string {
	r.version++
	return fmt.Sprint(100 + r.version)
}

// pod changes a pod, and returns it.
func (r *rollouts) pod(p podView, change func(*podView)) podView {
	change(&p)
	p.ResourceVersion = r.next()
	r.pods = append(r.pods, func(c *cluster) { _ = c.pods.Update(&p) })
	return p
}

func (r *rollouts) gone(p podView) {
	p.ResourceVersion = r.next()
	r.pods = append(r.pods, func(c *cluster) { _ = c.pods.Delete(&p) })
}

func (r *rollouts) publish(p podView, held bool) {
	o := kept(p.Name, p.Node)
	if held {
		o = left(p.Name, p.Node, time.Hour)
	}
	o.ResourceVersion, o.PodUID, o.Addresses = r.next(), string(p.UID), p.Addresses
	o.Primary, o.CreationTimestamp = p.Addresses, metav1.NewTime(r.clock.Truncate(time.Second))
	r.reservations = append(r.reservations, func(c *cluster) { _ = c.reservations.Update(o) })
}

func (r *rollouts) unpublish(p podView) {
	o := kept(p.Name, p.Node)
	o.ResourceVersion, o.PodUID = r.next(), string(p.UID)
	r.reservations = append(r.reservations, func(c *cluster) { _ = c.reservations.Delete(o) })
}

// TestRollouts replaces all pods of a name, whose new ones either of two replicas admits. Pods are
// seen late, and reservations later or never. The new pods are sent to the nodes of the old ones.
func TestRollouts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rollouts{t: rt, clock: noon, sole: rapid.Bool().Draw(rt, "sole")}
		for i := range r.replicas {
			c := clusterOf(t, nil, &r.clock)
			c.isLeader = func() bool { return i == 0 }
			r.replicas[i].cluster = c
		}
		var pods []podView
		var want []string
		for i := range rapid.IntRange(1, 4).Draw(rt, "pods") {
			node := fmt.Sprint("node", i)
			if r.sole {
				node = fmt.Sprint("node", rapid.IntRange(1, 3).Draw(rt, "node"))
			}
			want = append(want, node)
			pods = append(pods, r.pod(*lives(fmt.Sprint("pod-0-", i), node), func(p *podView) {
				p.Addresses = fmt.Sprint("10.0.0.", i)
				p.CreationTimestamp = metav1.NewTime(r.clock)
			}))
		}
		slices.Sort(want)
		for round := range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			pods = r.replace(round+1, pods)
			var got []string
			for _, p := range pods {
				got = append(got, p.Node)
			}
			slices.Sort(got)
			check.Slices(rt, got, want, "round", round+1)
		}
	})
}

// replace replaces all pods.
func (r *rollouts) replace(round int, old []podView) []podView {
	r.clock = r.clock.Add(time.Second)
	var steps []func()
	free := map[string][]podView{} // by node: pods that have ended
	for _, p := range old {
		if rapid.Bool().Draw(r.t, "published") {
			r.publish(p, false)
		}
	}
	for i, p := range old {
		old[i] = r.pod(p, deleting)
	}
	marked := len(r.pods) // the webhook waits until it sees them
	for _, p := range old {
		steps = append(steps, func() {
			r.gone(p)
			free[p.Node] = append(free[p.Node], p)
			if rapid.Bool().Draw(r.t, "published as held") {
				r.publish(p, true)
			}
		})
	}
	created := make([]podView, len(old))
	for i := range old {
		steps = append(steps, func() { created[i] = r.admit(fmt.Sprintf("pod-%d-%d", round, i), marked) })
	}
	for _, i := range rapid.Permutation(indexes(len(steps))).Draw(r.t, "order") {
		steps[i]()
		if rapid.Bool().Draw(r.t, "pause") {
			r.pause(created, free)
		}
	}
	r.pause(created, free)
	return created
}

// pause is a second in which new pods start, and both replicas see all pods.
func (r *rollouts) pause(created []podView, free map[string][]podView) {
	r.start(created, free)
	for i := range r.replicas {
		r.see(i, len(r.pods), r.replicas[i].reservations)
	}
}

// start has new pods take any address of the pods that have ended on their node.
func (r *rollouts) start(created []podView, free map[string][]podView) {
	for i, p := range created {
		if p.Pinned == "" || p.Started || len(free[p.Pinned]) == 0 {
			continue
		}
		at := rapid.IntRange(0, len(free[p.Pinned])-1).Draw(r.t, "address")
		former := free[p.Pinned][at]
		free[p.Pinned] = slices.Delete(slices.Clone(free[p.Pinned]), at, at+1)
		created[i] = r.pod(p, func(p *podView) { p.Node, p.Started, p.Addresses = p.Pinned, true, former.Addresses })
		if rapid.Bool().Draw(r.t, "published at once") {
			r.publish(created[i], false)
			r.unpublish(former)
		}
	}
}

// admit has one of the replicas admit a pod, after it has seen some of what happened.
func (r *rollouts) admit(name string, marked int) podView {
	i := 0
	if !r.sole {
		i = rapid.IntRange(0, 1).Draw(r.t, "replica")
	}
	r.see(i, rapid.IntRange(max(marked, r.replicas[i].pods), len(r.pods)).Draw(r.t, "seen pods"),
		rapid.IntRange(r.replicas[i].reservations, len(r.reservations)).Draw(r.t, "seen reservations"))
	c, key := r.replicas[i].cluster, control.NameKey("db", "registry")
	sent := c.sent[0].pods
	targets := slices.Collect(c.targets(key, sent))
	if len(targets) == 0 {
		r.t.Fatalf("replica %d finds no node for %s", i, name)
	}
	c.sent[0].add(targets[0].Node, c.now())
	return r.pod(*pinnedTo(name, targets[0].Node), func(p *podView) { p.CreationTimestamp = metav1.NewTime(r.clock) })
}

func indexes(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}
