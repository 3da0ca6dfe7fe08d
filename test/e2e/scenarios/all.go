package scenarios

import "github.com/leasehold-cni/leasehold/test/e2e/story"

// A Scenario is a story of package story that takes place in a World.
type Scenario struct {
	story.Scenario
	Run func(*World)
}

func keeps(name, about string, run func(*World)) Scenario {
	return Scenario{story.Scenario{Name: name, About: about, Keeps: true}, run}
}

func works(name, about string, run func(*World)) Scenario {
	return Scenario{story.Scenario{Name: name, About: about}, run}
}

// All are the scenarios in the order in which they run: from everyday life to the rare accident.
func All() []Scenario {
	return []Scenario{
		keeps("recreate", "a deleted pod comes back under its address", recreate),
		keeps("rolling-update", "a changed template replaces every pod", rollingUpdate),
		keeps("scale-to-zero", "away and back inside the window, while others come and go", scaleToZero),
		keeps("window-passed", "nobody gets the address before the window ends, somebody after", windowPassed),
		works("no-annotation", "a pod without a window gets the next address, as with host-local", noAnnotation),
		keeps("churn-beside", "a Deployment of unannotated pods churns beside", churnBeside),
		keeps("fifty", "50 pods of one StatefulSet start at once on one node, twice", fifty),
		keeps("sandbox-killed", "the same pod gets a new sandbox", sandboxKilled),
		keeps("force-delete", "the new pod starts while the old container still runs", forceDelete),
		keeps("busy-timeout", "the old container never ends: another address, which is then the pod's", busyTimeout),
		keeps("kubelet-restart", "the kubelet is away while a pod is deleted", kubeletRestart),
		keeps("containerd-restart-in-add", "containerd restarts while the plugin is at work", containerdRestartInAdd),
		keeps("containerd-killed", "containerd dies, a pod is deleted, containerd returns", containerdKilled),
		keeps("api-away", "a sandbox dies while the control plane is down", apiAway),
		keeps("cut-off", "a pod is deleted while its node is off the network", cutOff),
		keeps("cordon", "a pod waits until its node takes pods again", cordon),
		keeps("reboot", "the node reboots, the pods are the same", reboot),
		keeps("reboot-replaced", "the pods were replaced while the node was off", rebootReplaced),
		keeps("late-dels", "DELs of the kubelet's garbage collection come after the new ADD", lateDels),
		keeps("second-network", "a pod with an interface in two networks keeps both addresses", secondNetwork),
		keeps("bridge", "recreate and scale on the bridge plugin", onBridge),
		keeps("ptp", "recreate and scale on the ptp plugin", onPtp),
		works("status", "containerd 2.4, CNI 1.1.0: STATUS arrives, an exhausted pool leaves the node Ready", status),
	}
}
