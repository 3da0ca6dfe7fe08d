package scenarios

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// A scenario is a subtest.
type scenario struct {
	name  string // also the prefix of its namespace
	about string
	run   func(*Test)
	// nodes are the nodes that the scenario uses, as Test.Node counts them. One without any uses
	// the whole cluster.
	nodes []int
	// installed marks a scenario of the whole cluster about how administrators install, inspect and
	// remove leasehold.
	installed bool
	// beside marks a scenario that changes nothing outside of its namespace. It runs in parallel to
	// others of this kind, after the other scenarios of its group.
	beside  bool
	blocker // keeps the scenario from being run, unless it is the zero value
}

// A blocker is what keeps a scenario from being run in some clusters.
type blocker struct {
	reason string
	is     func(cluster.Options) bool
}

func does(name, about string, run func(*Test)) scenario {
	return scenario{name: name, about: about, run: run}
}

// on returns the scenario with the nodes that it uses. If it is one, it runs in parallel to
// scenarios of other nodes.
func (s scenario) on(nodes ...int) scenario {
	s.nodes = nodes
	return s
}

// besides returns the scenario marked with beside.
func (s scenario) besides() scenario {
	s.beside = true
	return s
}

// installs returns the scenario marked with installed.
func (s scenario) installs() scenario {
	s.installed = true
	return s
}

// unless returns the scenario with what keeps it from being run.
func (s scenario) unless(o blocker) scenario {
	s.blocker = o
	return s
}

var (
	withoutCRIO = blocker{"only CRI-O does this", func(o cluster.Options) bool { return o.CRIO == "" }}
	withCRIO    = blocker{"with CRI-O, pods have an interface in one network only",
		func(o cluster.Options) bool { return o.CRIO != "" }}
	withoutFlannel = blocker{"it is about flannel's manifest",
		func(o cluster.Options) bool { return o.CNI == cluster.KubeRouter || o.CNI == "kind" }}
)

// fitting returns the scenarios that can be run in a cluster, and says which others there are.
func fitting(table []scenario, o cluster.Options) (fit []scenario, left string) {
	reasons := map[string][]string{}
	for _, s := range table {
		if s.is == nil || !s.is(o) {
			fit = append(fit, s)
		} else {
			reasons[s.reason] = append(reasons[s.reason], s.name)
		}
	}
	var lines []string
	for reason, names := range reasons {
		lines = append(lines, fmt.Sprintf("left out: %s: %s\n", strings.Join(names, ", "), reason))
	}
	slices.Sort(lines)
	return fit, strings.Join(lines, "")
}

// nodeNames returns the names of the nodes that the scenario uses.
func (s scenario) nodeNames(all []string) []string {
	if len(s.nodes) == 0 {
		return all
	}
	var names []string
	for _, i := range s.nodes {
		names = append(names, nodeName(all, i))
	}
	return names
}

// nodeName returns the i-th node, counted from 1, or the last if there are fewer.
func nodeName(all []string, i int) string { return all[min(i, len(all))-1] }

// table has all scenarios. Those of one node, and those of several, run in this order.
var table = []scenario{
	does("recreate", "deleted pods come back under their addresses, also after other pods have started",
		recreate).on(1),
	does("force-delete", "the new pod starts while the old container still runs", forceDelete).on(1),
	does("node-services", "a pod is deleted while the kubelet, the runtime or the network of its node is away",
		nodeServices).on(1),
	does("reboot",
		"the node reboots, and pods are replaced; its reservations are correct as soon as the agent is ready",
		reboot).on(2),
	does("reboot-api-down", "the node boots while the API server is off", rebootAPIDown),
	does("multus", "Multus attaches pods to two networks: both addresses are kept", onMultus).on(3),
	does("status", "CNI 1.1.0: the runtime calls STATUS, and an exhausted pool leaves the node Ready",
		status).on(3),
	does("kills", "containers, shims, runtime, kubelet and agent are killed: running pods keep their addresses",
		kills).on(1),
	does("node-pool", "a node and its metrics show how many addresses are bound, held and free",
		nodePool).on(3),
	does("k3s", "k3s' directories: its configuration is written anew, leasehold replaces host-local, k3s is upgraded",
		onK3s).on(3),
	does("without-agent", "the plugin works without the agent", withoutAgentPod).on(2),
	does("no-agent-shown", "what a node without its agent shows is unknown, until the agent is back",
		nodeWithoutAgent).on(2),
	does("store-lost", "a lost store is recovered from what the node shows", storeLost).on(2),
	does("crio-gc", "CRI-O is killed and starts: its GC releases what no sandbox has, and nothing else", crioGC).on(2).
		unless(withoutCRIO),
	does("crio-del", "a DEL fails, and is not repeated: the address is released when the sandbox is proven dead",
		crioDEL).on(2).unless(withoutCRIO),
	does("crio-replay", "another network becomes the default: DELs have the list of their ADDs", crioReplay).on(2).
		unless(withoutCRIO),
	does("crio-wipe", "crio wipe while pods run: no address is given to another pod, and each pod's is kept",
		crioWipe).on(2).unless(withoutCRIO),
	does("crio-status", "an unusable store makes the node NotReady with the reason, until it is repaired",
		crioStatus).on(2).unless(withoutCRIO),
	does("named-recreate", "pods with generated names and a reservation name keep their address 20 times",
		namedRecreate).besides(),
	does("named-rollout", "five rollouts with maxSurge 0 and a scaling keep the set of addresses; a shared name",
		namedRollout).besides(),
	does("named-resized",
		"Deployments that grow or shrink in a rollout keep their addresses, beside forged reviews", namedResized),
	does("named-agent", "reservation names come from the agent alone, or after the first life",
		namedWithoutCapability).on(1),
	does("pin", "pods that are deleted at once, or restarted one by one, return to their nodes", pin).besides(),
	does("pin-modes", "every mode returns pods to their nodes and records it", pinModes).besides(),
	does("pin-elsewhere",
		"an unschedulable node and an eviction keep no pod waiting, and an event gives the reason", pinElsewhere),
	does("pin-full",
		"a full node keeps no pod waiting longer than its patience; a pod of higher priority preempts there",
		pinFull).besides(),
	does("pin-node-dead", "a node that is not Ready or deleted keeps no pod waiting", pinNodeDead),
	does("pin-manager-down", "without a manager pods start unpinned, and those that were pinned start on their nodes",
		pinManagerDown),
	does("pin-frozen", "pods start while the managers are frozen", pinFrozen),
	does("pin-killed", "the scheduler is away for a minute and both managers are killed: pods return to their nodes",
		pinKilled),
	does("pin-certificate", "the webhook's certificate is recreated, and its CA repaired", pinCertificate),
	does("pin-values", "which values of the annotations are accepted, and the errors of the others", pinValues).on(3),
	does("reservations", "retained addresses are published, and released on request", reservations).on(1),
	does("chosen-address", "users choose addresses before their pods exist, and the pods are led to them",
		chosenAddress).besides(),
	does("chosen-shared", "two nodes have the same ranges in a macvlan network: the request names the node",
		chosenShared).on(2, 3).unless(withCRIO),
	does("events", "events report what happened to addresses; ReplicaSets and Jobs retain none", eventsReported).on(3),
	does("moved", "the pod has moved to another node: the old one ends the hold", moved),
	does("api-down-reservations", "the API server is down, then the CRD is missing: no address is released",
		apiDownReservations),
	does("pps-explicit", "PersistentPodState as documented: an object, in both versions, and others that are rejected",
		ppsExplicit).besides(),
	does("pps-zone", "the zone is required, the host preferred, and the user's own selector takes precedence", ppsZone),
	does("pps-retention",
		"annotations of the StatefulSet; scaled under both policies, ordinals from 5, deleted and recreated",
		ppsRetention).besides(),
	does("pps-gone-node", "a required hostname of a deleted node binds no pod", ppsGoneNode),
	does("pps-kinds", "workloads of kinds that are added while the manager runs, such as Kruise's StatefulSet",
		ppsKinds),
	does("pps-kruise", "Kruise is installed and uninstalled with its CRD: no object is lost", ppsKruise),
	does("pps-etcd", "etcd with pod addresses as peers: each member is deleted in turn, then a rolling update",
		ppsEtcd).besides(),
	does("redis", "six members of a Redis cluster are deleted at once, and two nodes boot while the API server is off",
		redis),
	does("udp-flow", "UDP flows of other pods and through a host port go on after the pod was recreated",
		udpFlow).besides(),
	does("doctor", "kubectl leasehold doctor finds nothing in a healthy cluster, and planted faults and their repairs",
		doctor).installs(),
	does("install-helm", "Helm installs a release of a registry, upgrades, rolls back and removes it under churn",
		installHelm).installs(),
	does("install-replace",
		"README's quick start, upgrade and rollback in host-local's place; uninstall removes every trace",
		installReplace).installs(),
	does("install-alone", "leasectl installs the plugin alone on each node, and removes it under running pods",
		installAlone).installs(),
	does("uninstall-asks", "uninstall changes nothing while a node is off, and puts back what was edited by hand",
		uninstallAsks).installs().unless(withoutFlannel),
	does("install-named", "leasectl names leasehold in flannel's ConfigMap; uninstall removes every trace",
		installNamed).installs().unless(withoutFlannel),
	does("upgrade", "parts of the base commit beside those of this one, in each order, while pods are recreated",
		upgrade).installs(),
}
