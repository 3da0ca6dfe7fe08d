package pin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A pod with a reservation name (policy.ReserveAs) takes an address that another pod with the name
// has left. Several pods with the name may live and be created at the same time, and each hold is
// for one of them. So a new pod is pinned to a node only if that has more addresses for the name
// than pods that were sent there for one (cluster.targets).

// admissionLag is how long after its admission a pod with a reservation name is counted although no
// watch shows it.
const admissionLag = 3 * time.Second

// A Deployment creates a pod when another one is deleted, and the watch may show the deletion a
// moment later. Before such a pod is admitted, the webhook waits for lookPause: if several pods are
// replaced at once, both replicas should see all of their addresses, because each would send a pod
// to the only one that it sees. If there is no address, the webhook looks lookTries times.
const (
	lookPause = 100 * time.Millisecond
	lookTries = 5
)

// admitted is where a pod with a reservation name was sent when it was admitted.
type admitted struct {
	name            string // nameKey
	node, addresses string
	at              time.Time
}

// indexName returns the values of the index byName.
func indexName(namespace, name string) []string {
	if name == "" {
		return nil
	}
	return []string{nameKey(namespace, name)}
}

// nameKey returns the key of a reservation name. It differs from the keys "namespace/pod", because
// the name of a pod has no colon.
func nameKey(namespace, name string) string { return namespace + "/as:" + name }

// reservationName returns the reservation name of a pod, "" if it has none or an invalid one.
func reservationName(p *corev1.Pod) string {
	name, err := policy.ParseReservation(p.Annotations[policy.ReserveAs])
	if err != nil {
		return ""
	}
	return name
}

// workloadOf describes what created a pod, so that the pods of one workload have the same text. The
// ReplicaSets of a Deployment are one workload.
func workloadOf(p *corev1.Pod) string {
	c := metav1.GetControllerOfNoCopy(p)
	switch {
	case c == nil && p.GenerateName != "":
		return "pods " + p.GenerateName + "*"
	case c == nil:
		return "pod " + p.Name
	case c.Kind == "ReplicaSet":
		if name, ok := strings.CutSuffix(c.Name, "-"+p.Labels["pod-template-hash"]); ok {
			return "Deployment " + name
		}
	}
	return c.Kind + " " + c.Name
}

// generatedSuffix is how many random characters the API server appends to metadata.generateName,
// cut so that the name has at most 63.
const generatedSuffix = 5

// nameOf returns the name of a pod that is being created. If it has none, nameOf generates one in
// the way of the API server, which does so only after the admission.
func (c *cluster) nameOf(namespace string, p *corev1.Pod) string {
	if p.Name != "" {
		return p.Name
	}
	prefix := p.GenerateName[:min(len(p.GenerateName), 63-generatedSuffix)]
	for {
		name := prefix + rand.String(generatedSuffix)
		if c.pod(namespace+"/"+name) == nil {
			return name
		}
	}
}

// A vacancy is an address that a new pod with its reservation name may take, if it is free.
type vacancy struct {
	*reservation
	free    bool
	lives   bool      // its pod lives
	created time.Time // of the last pod, if the manager saw it, otherwise of the reservation
	seen    bool      // the manager saw the last pod on that node
	last    instance
}

// targets returns the nodes that have an address for a reservation name to which no other pod was
// sent for it, the best first, each with what is remembered of the last pods there. key is that of
// the new pod, and is not counted.
func (c *cluster) targets(namespace, name, key string) (nodes []pinTarget, last []instance) {
	all := append(c.unpublished(namespace, name), c.reservations.ByIndex(byName, nameKey(namespace, name))...)
	ofName := c.lastEnded(nameKey(namespace, name))
	latest := map[string]vacancy{} // the address may belong to another pod already
	for _, r := range all {
		v := c.vacancy(r, ofName)
		if other, found := latest[r.slot()]; !found || v.compareHolder(other) > 0 {
			latest[r.slot()] = v
		}
	}
	vacancies := slices.SortedFunc(maps.Values(latest), compareVacancies)
	vacancies = slices.DeleteFunc(vacancies, func(v vacancy) bool { return !v.free })
	if c.isFollower != nil && c.isFollower() {
		reverseFirst(vacancies)
	}
	sent, expected := c.sent(namespace, name, key)
	vacancies = slices.DeleteFunc(vacancies, func(v vacancy) bool {
		if expected[v.slot()] {
			sent[v.Node]--
		}
		return expected[v.slot()]
	})
	vacancies = slices.DeleteFunc(vacancies, func(v vacancy) bool {
		sent[v.Node]--
		return sent[v.Node] >= 0
	})
	for _, v := range vacancies {
		nodes = append(nodes, pinTarget{Node: v.Node, NodeUID: v.NodeUID, Addresses: v.Addresses,
			Abandoned: v.Abandoned, Remembered: v.ResourceVersion == ""})
		last = append(last, v.last)
	}
	return nodes, last
}

// compareHolder compares two vacancies of one address. It is positive if v is that of the pod which
// had the address later.
func (v vacancy) compareHolder(other vacancy) int {
	switch {
	case v.lives && !other.lives:
		return 1
	case other.lives && !v.lives:
		return -1
	}
	return cmp.Or(v.created.Compare(other.created), cmp.Compare(version(v.reservation), version(other.reservation)))
}

// slot identifies the address of a reservation: its node and its first address.
func (r *reservation) slot() string { return slotOf(r.Node, cmp.Or(r.Addresses, r.Pod)) }

func slotOf(node, addresses string) string {
	address, _, _ := strings.Cut(addresses, ",")
	return node + "/" + address
}

// unpublished returns reservations, without a resource version, for the addresses of the pods with
// a reservation name that exist, or ended less than publishLag ago, and whose own reservations do
// not exist yet.
func (c *cluster) unpublished(namespace, name string) (out []*reservation) {
	now := c.now()
	add := func(pod string, t instance) {
		isPublished := slices.ContainsFunc(c.reservationsOf(namespace+"/"+pod),
			func(r *reservation) bool { return r.PodUID == t.PodUID })
		if t.Started && t.unpublished(now) && !isPublished {
			out = append(out, &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				CreationTimestamp: metav1.NewTime(t.Created)},
				Pod: pod, Node: t.Node, PodUID: t.PodUID, For: name, Bound: true, Addresses: t.Addresses})
		}
	}
	for _, p := range c.pods.ByIndex(byName, nameKey(namespace, name)) {
		add(p.Name, c.last(keyOf(p)))
	}
	c.mu.Lock()
	ended := slices.Clone(c.ended[nameKey(namespace, name)])
	c.mu.Unlock()
	for _, pod := range ended {
		if c.pod(namespace+"/"+pod) == nil {
			add(pod, c.lastEnded(namespace+"/"+pod))
		}
	}
	return out
}

// vacancy returns the vacancy of a reservation. It is not free if the hold is over or is being
// released, if what the manager has seen of its pod contradicts it, or if its pod lives. The
// addresses of a pod that the manager has seen end, or that is being deleted, will be held. ofName
// is the instance of the reservation name.
func (c *cluster) vacancy(r *reservation, ofName instance) vacancy {
	key := r.Namespace + "/" + r.Pod
	last, p := c.last(key), c.pod(key)
	isHere := last.Node == r.Node && last.PodUID == r.PodUID
	lives := p != nil && string(p.UID) == r.PodUID && p.isAlive()
	free := !r.Releasing && !r.isOver(c.now()) && !last.contradicts(r) && !lives && (!r.Bound || isHere)
	v := vacancy{r, free, lives, r.CreationTimestamp.Time, isHere,
		instance{Node: r.Node, Evicted: isHere && last.Evicted}}
	if isHere {
		v.created = last.Created
	}
	if ofName.Node == r.Node {
		v.last.Failures = ofName.Failures
	}
	return v
}

// rank is the first criterion of compareVacancies: what is abandoned is last. Before that is what
// the manager has not seen itself, because a compromised node may publish reservations of pods that
// never existed.
func (v vacancy) rank() int {
	switch {
	case v.Abandoned:
		return 2
	case !v.seen:
		return 1
	}
	return 0
}

// compareVacancies compares two vacancies of a reservation name: that of the youngest pod is first.
// When pods end, this does not change, so that all replicas have the same order.
func compareVacancies(a, b vacancy) int {
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), b.created.Compare(a.created), cmp.Compare(b.Pod, a.Pod))
}

// reverseFirst reverses the order of the vacancies with the rank of the first one. A follower does
// not know at once what the leader decides, and the other way round. So the leader begins with the
// first vacancy, and the follower with the last one.
func reverseFirst(all []vacancy) {
	n := slices.IndexFunc(all, func(v vacancy) bool { return v.rank() != all[0].rank() })
	if n < 0 {
		n = len(all)
	}
	slices.Reverse(all[:n])
}

// sent returns, by node, how many pods with a reservation name were bound or pinned to it and have
// no address yet, and the slots of the addresses that they are expected to get. It does not count
// the pod with this key.
func (c *cluster) sent(namespace, name, key string) (out map[string]int, expected map[string]bool) {
	out, expected = map[string]int{}, map[string]bool{}
	for _, p := range c.pods.ByIndex(byName, nameKey(namespace, name)) {
		hasAddress := p.Started || slices.ContainsFunc(c.reservationsOf(keyOf(p)),
			func(r *reservation) bool { return r.PodUID == string(p.UID) })
		if keyOf(p) != key && p.isAlive() && !hasAddress {
			out[cmp.Or(p.Node, p.Pinned)]++
			expected[slotOf(cmp.Or(p.Node, p.Pinned), p.Expected)] = p.Expected != ""
		}
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, a := range c.admitted {
		isNew := now.Sub(a.at) < admissionLag && c.pod(other) == nil && len(c.reservationsOf(other)) == 0
		if other != key && a.name == nameKey(namespace, name) && isNew {
			out[a.node]++
			expected[slotOf(a.node, a.addresses)] = a.addresses != ""
		}
	}
	return out, expected
}

// mayReplace reports whether a new pod may be the replacement of another one with its reservation
// name, because a pod of the same workload has an address. It also reports true for the new pods of
// a workload that grows, for which the webhook finds nothing when it looks again.
func (c *cluster) mayReplace(namespace, name string, p *corev1.Pod) bool {
	return slices.ContainsFunc(c.pods.ByIndex(byName, nameKey(namespace, name)), func(other *podView) bool {
		return other.isAlive() && other.Started && other.Workload == workloadOf(p)
	})
}

// reservationsFor returns the reservations that a pod which has not started may take.
func (c *cluster) reservationsFor(p *podView) []*reservation {
	if p.For == "" {
		return c.reservationsOf(keyOf(p))
	}
	return slices.DeleteFunc(slices.Clone(c.reservations.ByIndex(byName, nameKey(p.Namespace, p.For))),
		func(r *reservation) bool { return !c.vacancy(r, instance{}).free })
}

// isAlive reports whether a pod runs or will run.
func (p *podView) isAlive() bool { return p.DeletionTimestamp == nil && !p.Failed && !p.Succeeded }

// admit records where a pod with a reservation name is sent that is being admitted.
func (c *cluster) admit(key, nameKey, node, addresses string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admitted[key] = admitted{nameKey, node, addresses, c.now()}
}

// shared returns the text of the Event of a pod whose reservation name pods of another workload of
// the namespace use as well, "" for other pods.
func (c *cluster) shared(p *podView) string {
	for _, other := range c.pods.ByIndex(byName, nameKey(p.Namespace, p.For)) {
		if p.For != "" && other.Workload != p.Workload && other.isAlive() {
			return fmt.Sprintf("%s and %s use the reservation name %q: the pods of each may get addresses of the "+
				"other; give each workload a name of its own in the annotation %s",
				p.Workload, other.Workload, p.For, policy.ReserveAs)
		}
	}
	return ""
}
