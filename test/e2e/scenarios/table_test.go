package scenarios

// A scenario is a subtest.
type scenario struct {
	name  string // also the prefix of its namespace
	about string
	run   func(*Test)
	// keeps marks a scenario that proves that an address is kept: with a plugin without retention
	// it must lose one.
	keeps bool
	// ours marks a scenario about leasehold's own pods. It is not run with another plugin.
	ours bool
	// nodes are the nodes that the scenario uses, as Test.Node counts them. One without any uses
	// the whole cluster.
	nodes []int
}

func keeps(name, about string, run func(*Test)) scenario {
	return scenario{name: name, about: about, run: run, keeps: true}
}

func works(name, about string, run func(*Test)) scenario {
	return scenario{name: name, about: about, run: run}
}

func ours(name, about string, run func(*Test)) scenario {
	return scenario{name: name, about: about, run: run, keeps: true, ours: true}
}

// on returns the scenario with the nodes that it uses. If it is one, it runs in parallel to
// scenarios of other nodes.
func (s scenario) on(nodes ...int) scenario {
	s.nodes = nodes
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
	keeps("recreate", "a deleted pod comes back under its address", recreate).on(1),
	keeps("rolling-update", "a changed template replaces every pod", rollingUpdate).on(1),
	keeps("scale-to-zero", "away and back inside the window, while others come and go", scaleToZero).on(1),
	keeps("window-passed", "nobody gets the address before the window ends, somebody after", windowPassed).on(2),
	works("no-annotation", "a pod without a window gets the next address, as with host-local", noAnnotation).on(1),
	keeps("churn-beside", "a Deployment of unannotated pods churns beside", churnBeside).on(1),
	keeps("fifty", "50 pods of one StatefulSet start at once on one node, twice", fifty).on(1),
	keeps("sandbox-killed", "the same pod gets a new sandbox", sandboxKilled).on(1),
	keeps("force-delete", "the new pod starts while the old container still runs", forceDelete).on(1),
	keeps("busy-timeout", "the old container never ends: another address, which is then the pod's", busyTimeout).on(2),
	keeps("kubelet-restart", "the kubelet is away while a pod is deleted", kubeletRestart).on(1),
	keeps("containerd-restart-in-add", "containerd restarts while the plugin is at work", containerdRestartInAdd).on(1),
	keeps("containerd-killed", "containerd dies, a pod is deleted, containerd returns", containerdKilled).on(1),
	keeps("api-away", "a sandbox dies while the control plane is down", apiAway),
	keeps("cut-off", "a pod is deleted while its node is off the network", cutOff).on(2),
	keeps("cordon", "a pod waits until its node takes pods again", cordon).on(1),
	keeps("reboot", "the node reboots, the pods are the same", reboot).on(2),
	keeps("reboot-replaced", "the pods were replaced while the node was off", rebootReplaced).on(2),
	keeps("late-dels", "DELs of the kubelet's garbage collection come after the new ADD", lateDels).on(3),
	keeps("second-network", "a pod with an interface in two networks keeps both addresses", secondNetwork).on(2),
	keeps("bridge", "recreate and scale on the bridge plugin", onBridge).on(2),
	keeps("ptp", "recreate and scale on the ptp plugin", onPtp).on(2),
	works("status", "containerd 2.4, CNI 1.1.0: STATUS arrives, an exhausted pool leaves the node Ready", status).on(3),
	ours("accidents", "containers, shims, containerd, kubelet and agent are killed: who lives keeps its address",
		accidents).on(1),
	keeps("leaked", "sandboxes vanish without a DEL, and the agent notices", leaked).on(1),
	keeps("leaked-reboot", "the same by a reboot", leakedReboot).on(1),
	ours("flannel-leftover", "flannel swallows a DEL, and the agent notices", flannelsLeftover).on(1),
	ours("blind", "agents that do not see the host do nothing and say so", blind).on(2),
	ours("expired", "a hold that is over is collected without any call", expired).on(2),
	ours("metrics", "the agent's numbers follow pods that come and go", counted).on(2),
	keeps("without-agent", "a node without an agent is right, too", agentless).on(2),
	ours("store-lost", "what a lost store knew comes back from the agent's copy", storeLost).on(2),
	keeps("first-connect", "a kept address with another MAC answers neighbours and the node at once",
		firstConnect).on(2),
	ours("pin", "nine pods on three nodes come back to their nodes", pin),
	ours("pin-modes", "every mode brings pods back, and says so", pinModes),
	ours("pin-short-life", "a pod that lived for a second comes back to its node", pinShortLife),
	ours("pin-elsewhere", "a node that takes no pods keeps none waiting, and the event says why", pinElsewhere),
	ours("pin-full", "a full node keeps no pod waiting", pinFull),
	ours("pin-node-dead", "nor does one that is dead or gone", pinNodeDead),
	ours("pin-require", "a required pod waits for its node, and not for ever", pinRequire),
	ours("pin-evicted", "an evicted pod is not brought back", pinEvicted),
	ours("pin-manager-away", "without a manager pods start unpinned", pinManagerAway),
	ours("pin-frozen", "a frozen manager keeps no pod from starting", pinFrozen),
	ours("pin-lift-gates", "the gates can be lifted without a manager", pinLiftGates),
	ours("pin-uninstall", "removed in the documented order, the manager leaves no gate", pinUninstall),
	ours("pin-certificate", "the webhook's certificate is made anew, and its CA kept right", pinCertificate),
	ours("pin-words", "what users may write, and what is said of the rest", pinWords).on(3),
	ours("pin-confined", "what the manager may not do", pinConfined).on(3),
	keeps("reservations", "what a node keeps is published, and given up when told so", reservations).on(1),
	keeps("stock-flannel", "flannel's stock list, leasehold in host-local's place: the agent alone brings the windows",
		stockFlannel).on(1),
	keeps("expected-back", "the window ends while the pod waits for its sandbox", expectedBack).on(1),
	keeps("forever", "no clock ends it: a word does, or a StatefulSet that does without the pod", forever).on(2),
	keeps("reservations-reboot", "after a reboot the reservations are right as soon as the agent is",
		reservationsReboot).on(2),
	ours("foreign-reservation", "an agent cannot write another node's reservations; what users may do with them",
		foreignReservation).on(1, 2),
	ours("told", "events say what became of addresses; ReplicaSets and Jobs keep none", told).on(3),
	ours("static-pod", "a static pod keeps its address, though the API knows it by another UID", staticPod).on(3),
	ours("storm", "250 pods start and go on one node: lag, writes and memory of what publishes them", storm).on(1),
	ours("moved", "the pod lives on another node: the old one lets go", moved),
	keeps("api-away-reservations", "the API server is away, then the CRD: no address is given up", apiAwayReservations),
	keeps("pps-manual", "PersistentPodState by the manual: annotations on the StatefulSet", ppsManual),
	keeps("pps-explicit", "PersistentPodState by the manual: an object, in both versions", ppsExplicit),
	ours("pps-zone", "the zone is required, the host preferred, and the user's own selector wins", ppsZone),
	keeps("pps-retention", "scaled down and up under both policies, ordinals from 5, deleted and made again",
		ppsRetention),
	ours("pps-refused", "conflicts, changed targets, bad weights and unknown kinds are refused", ppsRefused),
	ours("pps-gone-node", "a required hostname whose node is gone binds nobody", ppsGoneNode),
	ours("pps-short-life", "a pod that is gone before anything of it is recorded comes back to its node", ppsShortLife),
	ours("pps-kinds", "workloads of kinds that come while the manager runs, Kruise's StatefulSet among them", ppsKinds),
	ours("pps-webhook", "pods are sent to its webhook only while there is a PersistentPodState", ppsWebhook),
	ours("pps-kruise", "Kruise comes, goes, and takes the CRD with it: no object is lost", ppsKruise),
	keeps("pps-etcd", "etcd with pod addresses as peers: each member deleted in turn, and a rolling update", ppsEtcd),
}
