package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// redis tests a Redis cluster whose members have each other's addresses in their files. Nobody
// calls CLUSTER MEET after the cluster was created.
func redis(t *Test) {
	t.Apply(t.manifest("redis.yaml", "DATA", t.dataDir()))
	set := t.set("redis", 6)
	before := set.Ready()
	r := redisCluster{t, t.Node(1)}
	r.create(before)
	t.Step("six members have %d keys; all are deleted at once", redisKeys)
	after := set.Recreate()
	t.Kept(before, after)
	r.works(after)
	nodes := []*cluster.Node{t.Node(2), t.Node(3)}
	t.Step("every member serves every key; %s and %s lose power, and boot while the API server is off",
		nodes[0].Name, nodes[1].Name)
	rebooted := Pods{}
	for _, n := range nodes {
		for name, p := range after {
			if p.Spec.NodeName == n.Name {
				rebooted[name] = p
			}
		}
		t.powerOff(n)
	}
	if len(rebooted) != 4 {
		t.Fatalf("the two nodes have %d members, want 4: %v", len(rebooted), slices.Sorted(maps.Keys(rebooted)))
	}
	t.bootWithoutAPI(nodes...)
	again := set.Restarted(rebooted)
	t.Kept(after, again)
	r.works(again)
	t.Step("every member serves every key")
}

const redisKeys = 12

// redisCluster is a Redis cluster with a node that is not rebooted.
type redisCluster struct {
	t *Test
	n *cluster.Node
}

// create makes three members masters and three their replicas, and writes the keys.
func (r redisCluster) create(pods Pods) {
	var members []string
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		members = append(members, pods[name].Status.PodIP+":6379")
	}
	out := r.cli(append([]string{"--cluster-yes", "--cluster-replicas", "1", "--cluster", "create"}, members...)...)
	if !strings.Contains(out, "All 16384 slots covered") {
		r.t.Fatalf("redis-cli --cluster create: %s", out)
	}
	for i := range redisKeys {
		r.t.Becomes(fmt.Sprint("the answer to writing key", i), "OK", func() any {
			return r.cli("-c", "-h", pods["redis-0"].Status.PodIP, "set", fmt.Sprint("key", i), fmt.Sprint("value", i))
		})
	}
	r.works(pods)
}

// works waits until every member is connected to all others at their addresses and serves every
// key, and every key is on a master and its replica.
func (r redisCluster) works(pods Pods) {
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		r.t.Eventually(name+" sees a working cluster", func() error {
			return r.worksFor(pods[name].Status.PodIP, pods)
		})
	}
	r.t.Becomes("keys, each on two members", 2*redisKeys, func() any {
		total := 0
		for _, p := range pods {
			size, _ := strconv.Atoi(r.cli("-h", p.Status.PodIP, "dbsize"))
			total += size
		}
		return total
	})
}

// worksFor returns an error if the cluster does not work for the member at an address.
func (r redisCluster) worksFor(member string, pods Pods) error {
	info, nodes := r.cli("-h", member, "cluster", "info"), r.cli("-h", member, "cluster", "nodes")
	if !strings.Contains(info, "cluster_state:ok") || strings.Contains(nodes, "fail") ||
		strings.Count(nodes, " connected") != len(pods) {
		return fmt.Errorf("%s\n%s", info, nodes)
	}
	for name, p := range pods {
		if !strings.Contains(nodes, " "+p.Status.PodIP+":6379") {
			return fmt.Errorf("%s is not at %s:\n%s", name, p.Status.PodIP, nodes)
		}
	}
	for i := range redisKeys {
		if got := r.cli("-c", "-h", member, "get", fmt.Sprint("key", i)); got != fmt.Sprint("value", i) {
			return fmt.Errorf("key%d is %q", i, got)
		}
	}
	return nil
}

// cli runs redis-cli on the node, and returns what it prints or the error.
func (r redisCluster) cli(args ...string) string {
	out, err := r.n.Machine().Run(r.t.Ctx, append([]string{"timeout", "60", "redis-cli"}, args...)...)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}
