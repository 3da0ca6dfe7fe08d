package scenarios

import (
	"testing"
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
	beside bool
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
	does("recreate", "a deleted pod comes back under its address", recreate).on(1),
	does("scale-to-zero", "scaled down and up within the window, while other pods start", scaleToZero).on(1),
	does("force-delete", "the new pod starts while the old container still runs", forceDelete).on(1),
	does("kubelet-restart", "a pod is deleted while the kubelet is stopped", kubeletRestart).on(1),
	does("containerd-restart-in-add", "containerd restarts during an ADD", containerdRestartInAdd).on(1),
	does("containerd-killed", "a pod is deleted while containerd is down", containerdKilled).on(1),
	does("disconnected", "a pod is deleted while its node has no network", disconnected).on(2),
	does("cordon", "a pod waits until its node is uncordoned", cordon).on(1),
	does("reboot", "the node reboots and keeps its pods; its reservations are correct as soon as the agent is ready",
		reboot).on(2),
	does("reboot-api-down", "the node boots while the API server is off", rebootAPIDown),
	does("reboot-replaced", "the pods are replaced while the node is off", rebootReplaced).on(2),
	does("multus", "Multus attaches pods to two networks: both addresses are kept", onMultus).on(3),
	does("multus-thick", "the same with Multus' daemon", onThickMultus).on(3),
	does("status", "containerd 2.4, CNI 1.1.0: STATUS is called, and an exhausted pool leaves the node Ready",
		status).on(3),
	does("kills", "containers, shims, containerd, kubelet and agent are killed: running pods keep their addresses",
		kills).on(1),
	does("leaked-reboot", "the same across a reboot", leakedReboot).on(1),
	does("node-pool", "a node and its metrics show how many addresses are bound, held and free",
		nodePool).on(3),
	does("retention-off", "leasehold is taken out of use in seven ways: the node and its pods say so within a minute",
		retentionOff).on(2),
	does("k3s", "k3s' directories: its configuration is written anew, leasehold replaces host-local, k3s is upgraded",
		onK3s).on(3),
	does("without-agent", "the plugin works without the agent", withoutAgentPod).on(2),
	does("store-lost", "a lost store is recovered from what the node shows", storeLost).on(2),
	does("named-recreate", "pods with generated names and a reservation name keep their address 20 times",
		namedRecreate).besides(),
	does("named-rollout", "five rollouts with maxSurge 0 and a scaling keep the set of addresses; a shared name",
		namedRollout).besides(),
	does("named-forced", "a pod with a reservation name is force-deleted and its container does not end",
		namedForced).on(1),
	does("named-ending", "a node has room for one pod of a reservation name, which takes 20 s to end",
		namedEnding).besides(),
	does("named-replicas", "three managers send pods of a reservation name to its addresses", namedReplicas),
	does("named-agent", "reservation names come from the agent alone, or after the first life",
		namedWithoutCapability).on(1),
	does("pin", "nine pods on three nodes return to their nodes", pin).besides(),
	does("pin-modes", "every mode returns pods to their nodes and records it", pinModes).besides(),
	does("pin-short-life", "a pod that ran for a second returns to its node", pinShortLife).besides(),
	does("pin-elsewhere", "an unschedulable node keeps no pod waiting, and an event gives the reason", pinElsewhere),
	does("pin-sixty", "sixty pods that are deleted at once return to their nodes", pinSixty).besides(),
	does("pin-full", "a node full with pods of the same priority keeps no pod waiting", pinFull).besides(),
	does("pin-full-named", "a node full with other pods has three addresses of a reservation name",
		pinFullNamed).besides(),
	does("pin-preempts", "a pod preempts pods of lower priority on its node, and waits for their end",
		pinPreempts).besides(),
	does("pin-claim", "a pod with a claim that nothing binds is replaced once", pinClaim).besides(),
	does("pin-node-dead", "a node that is not Ready or deleted keeps no pod waiting", pinNodeDead),
	does("pin-patient", "a pod with a patience waits for its node until that is over", pinPatient).besides(),
	does("pin-gated", "a pod with another controller's gate is preferred on its node", pinGated).besides(),
	does("pin-rejected", "pods that a later webhook or a quota rejects return to their nodes", pinQuota).besides(),
	does("pin-placed", "a later webhook sets the node of a pod that is pinned to another one", pinPlaced).besides(),
	does("pin-ignored", "a scheduler that ignores node affinity keeps no pod waiting", pinIgnored),
	does("pin-evicted", "an evicted pod is not pinned", pinEvicted).besides(),
	does("pin-manager-down", "without a manager pods start unpinned", pinManagerDown),
	does("pin-frozen", "pods start while the managers are frozen", pinFrozen),
	does("pin-killed", "the scheduler is away for a minute and both managers are killed: pods return to their nodes",
		pinKilled),
	does("pin-restarted", "a manager restarts between the deletion of a pod and its successor", pinRestarted),
	does("pin-uninstall", "managers that are removed leave no pod that waits for them", pinUninstall),
	does("pin-certificate", "the webhook's certificate is recreated, and its CA repaired", pinCertificate),
	does("pin-values", "which values of the annotations are accepted, and the errors of the others", pinValues).on(3),
	does("reservations", "retained addresses are published, and released on request", reservations).on(1),
	does("expected-back", "the window ends while the pod waits for its sandbox", expectedBack).on(1),
	does("forever", "an endless hold ends by a release", forever).on(2),
	does("chosen-address", "users choose addresses before their pods exist, and the pods are led to them",
		chosenAddress).besides(),
	does("chosen-shared", "two nodes have the same ranges in a macvlan network: the request names the node",
		chosenShared).on(2, 3),
	does("events", "events report what happened to addresses; ReplicaSets and Jobs retain none", eventsReported).on(3),
	does("static-pod", "a static pod, whose object has another UID, keeps its address", staticPod).on(3),
	does("moved", "the pod has moved to another node: the old one ends the hold", moved),
	does("api-down-reservations", "the API server is down, then the CRD is missing: no address is released",
		apiDownReservations),
	does("pps-manual", "PersistentPodState as documented: annotations on the StatefulSet", ppsManual).besides(),
	does("pps-explicit", "PersistentPodState as documented: an object, in both versions", ppsExplicit).besides(),
	does("pps-zone", "the zone is required, the host preferred, and the user's own selector takes precedence", ppsZone),
	does("pps-retention", "scaled down and up under both policies, ordinals from 5, deleted and recreated",
		ppsRetention).besides(),
	does("pps-refused", "conflicts, changed targets, invalid weights and unknown kinds are rejected",
		ppsRefused).besides(),
	does("pps-gone-node", "a required hostname of a deleted node binds no pod", ppsGoneNode),
	does("pps-short-life", "a pod that is deleted before it is recorded returns to its node", ppsShortLife).besides(),
	does("pps-kinds", "workloads of kinds that are added while the manager runs, such as Kruise's StatefulSet",
		ppsKinds),
	does("pps-webhook", "the webhooks of PersistentPodState stay when the manifests are applied again", ppsWebhook),
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
	does("uninstall-asks", "uninstall changes nothing while a node cannot be, and puts back what was edited by hand",
		uninstallAsks).installs(),
	does("install-named", "leasectl names leasehold in flannel's ConfigMap; uninstall removes every trace",
		installNamed).installs(),
	// The longest of those that run beside others: the last one starts first.
	does("pin-finalizer", "a pod that never ends does not keep its successor waiting", pinFinalizer).besides(),
}

// TestTable checks that each scenario can be selected and has a name that fits into that of its
// namespace.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range table {
		if seen[s.name] {
			t.Errorf("two scenarios are called %s", s.name)
		}
		seen[s.name] = true
		if len(s.name) > 40 || s.about == "" || s.run == nil {
			t.Errorf("%s: long name, no description or nothing to run", s.name)
		}
		for _, i := range s.nodes {
			if i < 1 || i > 3 {
				t.Errorf("%s: no test runs scenarios of node %d", s.name, i)
			}
		}
	}
}
