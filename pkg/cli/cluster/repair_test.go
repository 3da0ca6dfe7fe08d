package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/repairs"
)

// TestRepairsDoNoHarm has the checks of a cluster make findings of every reason that the sources
// name.
func TestRepairsDoNoHarm(t *testing.T) {
	var all []cli.Finding
	for about, f := range clusters() {
		c := newCluster(t, f.answers)
		c.Clock = func() lease.Instant { return lease.Instant{Wall: time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)} }
		found := c.examine(t.Context(), true).Findings
		all = append(all, found...)
		found = slices.DeleteFunc(found, func(f cli.Finding) bool { return f.Reason == "ObjectMissing" })
		if !slices.EqualFunc(found, f.want, func(f cli.Finding, want string) bool {
			reason, text, _ := strings.Cut(want, ": ")
			return f.Reason == reason && strings.Contains(fmt.Sprintf("%+v", f), text)
		}) {
			t.Errorf("%s: found %+v, want %q", about, found, f.want)
		}
	}
	repairs.Check(t, all, "PodWithoutLease")
}

// clusters returns what kubectl prints in clusters with faults, and the reasons that doctor has to
// find beside that of missing objects, each once.
func clusters() map[string]faulty {
	const none, ready = "", `"status":{"conditions":[{"type":"Ready","status":"True"}]}`
	list := func(items ...string) string { return `{"items":[` + strings.Join(items, ",") + `]}` }
	annotated := func(own, template string) string {
		return list(fmt.Sprintf(`{"metadata":{"namespace":"a","name":"b","annotations":{%s}},
			"spec":{"template":{"metadata":{"annotations":{%s}}}}}`, own, template))
	}
	node := func(status string) string { return list(`{"metadata":{"name":"node1"},` + status + `}`) }
	agent := func(status string) string {
		return list(`{"metadata":{"name":"leasehold-agent-x"},"spec":{"nodeName":"node1"},"status":{` +
			`"startTime":"2025-01-01T00:00:00Z",` + status + `}}`)
	}
	waits := func(reason string) string {
		return `"initContainerStatuses":[{"name":"install","image":"leasehold/agent:devel","state":{"waiting":{` +
			`"reason":"` + reason + `"}}}]`
	}
	workload := func(version string, replicas int) string {
		return fmt.Sprintf(`{"metadata":{"labels":{"app.kubernetes.io/version":%q}},"spec":{"replicas":%d},
			"status":{"readyReplicas":%[2]d}}`, version, replicas)
	}
	endpoints := list(`{"endpoints":[{"conditions":{"ready":true}}]}`)
	pool := func(active, reason string) string {
		network := `{"name":"b","active":"` + active + `"`
		if active != "True" {
			network += `,"reason":"` + reason + `"`
		}
		return list(`{"metadata":{"name":"node1"},"status":{"networks":[` + network + `}],"conditions":[{` +
			`"type":"RetentionActive","status":"` + active + `","reason":"` + reason + `",` +
			`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	}
	flannel := func(section string) string {
		text, _ := json.Marshal(`{"name":"cbr0","plugins":[{"type":"flannel"` + section + `}]}`)
		return `{"metadata":{"namespace":"kube-flannel"},"data":{"cni-conf.json":` + string(text) + `}}`
	}
	rejected := func(replicas int, annotations string) answers {
		event := func(kind, message string) string {
			return fmt.Sprintf(`{"involvedObject":{"kind":%q,"namespace":"a","name":"b"},"message":%q}`, kind, message)
		}
		return answers{"events": list(event("Job", "denied"), event("ReplicaSet", "exceeded quota"),
			event("StatefulSet", "ValidatingAdmissionPolicy 'nodes' denied request: no node names"),
			event("StatefulSet", "ValidatingAdmissionPolicy 'nodes' denied request: no node names")),
			"statefulsets.apps,replicasets.apps": list(fmt.Sprintf(`{"kind":"StatefulSet","metadata":{"namespace":"a",
			"name":"b"},"spec":{"replicas":%d,"template":{"metadata":{"annotations":{%s}}}},"status":{"replicas":2}}`,
				replicas, annotations))}
	}
	all := map[string]faulty{
		"nothing is installed": {answers{"mutatingwebhookconfiguration": none, "deployment": none,
			"daemonset": none}, nil},
		"the manager is scaled to zero": {answers{"deployment": workload("v1", 0)}, []string{"ManagerDown"}},
		"no manager is ready":           {answers{"deployment": `{"spec":{"replicas":2}}`}, []string{"ManagerDown"}},
		// What a new pod would wait for as well is no reason to restart the manager.
		"the manager has no image": {answers{"deployment": `{"spec":{"replicas":2}}`,
			"name=leasehold-manager": list(`{"status":{` + waits("ErrImageNeverPull") + `}}`)},
			[]string{"ManagerDown: Decide:where the node gets the image leasehold/agent:devel from"}},
		"the manager has no node": {answers{"deployment": `{"spec":{"replicas":2}}`,
			"name=leasehold-manager": list(`{"status":{"conditions":[{"type":"PodScheduled","status":"False",
				"message":"no node has room"}]}}`)},
			[]string{"ManagerDown: no node has room Why:" + notPinned + " Repair:[] Decide:which node"}},
		"the webhook has no endpoints": {answers{"deployment": workload("v1", 2),
			"endpointslice": list(`{"endpoints":[{"conditions":{"ready":false}}]}`)},
			[]string{"WebhookWithoutEndpoints"}},
		"a new manager beside old agents": {answers{"deployment": workload("v2", 2),
			"endpointslice": endpoints, "daemonset": workload("v1", 0)}, []string{"VersionsDiffer"}},
		"the same version": {answers{"deployment": workload("v1", 2), "endpointslice": endpoints,
			"daemonset": workload("v1", 0)}, nil},
		"an agent is not ready": {answers{"node -l": node(ready), "pod -l": agent(`"phase":"Pending"`)},
			[]string{"AgentNotReady"}},
		"an agent starts": {answers{"node -l": node(ready), "pod -l": strings.Replace(agent(`"phase":""`),
			"2025-01-01", "2026-01-01", 1)}, nil},
		"an agent has no rights": {answers{"node -l": node(ready), "pod -l": agent(`"phase":"Pending"`),
			"logs": `level=WARN msg="..." err="nodes is forbidden"`}, []string{"AgentForbidden"}},
		"an image is missing": {answers{"node -l": node(ready), "pod -l": agent(waits("ErrImageNeverPull"))},
			[]string{"AgentImageMissing"}},
		"an installer fails": {answers{"node -l": node(ready), "pod -l": agent(waits("CrashLoopBackOff"))},
			[]string{"AgentNotReady"}},
		"a node has no agent": {answers{"node -l": node(ready), "daemonset": workload("v1", 0),
			"nodeaddresspools": pool("Unknown", "AgentMissing")}, []string{"AgentMissing: Subject:node node1 " +
			"What:it has no pod of leasehold-agent; nobody confirms its NodeAddressPool and its reservations since " +
			"2026-01-01T00:00:00Z Why:"}},
		"a node has no agent, and the manager has not seen it yet": {answers{"node -l": node(ready),
			"daemonset": workload("v1", 0), "nodeaddresspools": pool("Unknown", "NotDetermined")},
			[]string{"AgentMissing: What:it has no pod of leasehold-agent Why:"}},
		"a node is out of reach": {answers{"node -l": node(`"status":{"conditions":[{"type":"Ready",` +
			`"status":"Unknown","message":"Kubelet stopped posting node status."}]}`), "exec": "no answer",
			"pod -l": agent(`"phase":"Running"`)},
			[]string{"NodeNotReady: Decide:whether the node comes back. If not, delete the Node object"}},
		"a node has no CNI configuration": {answers{"node -l": node(`"status":{"conditions":[{"type":"Ready",` +
			`"status":"False","message":"cni plugin not initialized"}]}`),
			"exec":   `{"findings":[{"reason":"NoConfiguration","decide":"which"}]}`,
			"pod -l": agent(`"phase":"Running"`)},
			[]string{"NoConfiguration"}},
		"a kubelet is not ready": {answers{"node -l": node(`"status":{"conditions":[{"type":"Ready",` +
			`"status":"False","message":"PLEG is not healthy"}]}`), "exec": `{"findings":[{"reason":"PoolFull",` +
			`"decide":"which"}]}`, "pod -l": agent(`"phase":"Running"`)}, []string{"PoolFull",
			"NodeNotReady: do not delete the Node object"}},
		"a network that is not leasehold's": {answers{"nodeaddresspools": pool("False", "HostLocalNamed")},
			[]string{"HostLocalNamed"}},
		"a node shares addresses": {answers{"nodeaddresspools": strings.Replace(pool("True", "Named"), `"conditions":[`,
			`"conditions":[{"type":"AddressesShared","status":"True","message":"10.0.0.2 with node node2"},`, 1)},
			[]string{"AddressesShared: Subject:node node1 What:10.0.0.2 with node node2"}},
		"a node does not share addresses any more": {answers{"nodeaddresspools": strings.Replace(pool("True", "Named"),
			`"conditions":[`, `"conditions":[{"type":"AddressesShared","status":"False"},`, 1)}, nil},
		"a pod without a lease": {answers{"nodeaddresspools": pool("False", "PodWithoutLease")},
			[]string{"PodWithoutLease"}},
		"flannel's manifest was applied again": {answers{"nodeaddresspools": pool("True", "Named"),
			"kube-flannel-cfg": flannel("")}, []string{"FlannelConfigMap"}},
		"flannel's ConfigMap names leasehold": {answers{"nodeaddresspools": pool("True", "Named"),
			"kube-flannel-cfg": flannel(`,"ipam":{"type":"leasehold"}`)}, nil},
		"flannel calls host-local, which is leasehold": {answers{"nodeaddresspools": pool("True", "Replaced"),
			"kube-flannel-cfg": flannel("")}, nil},
		"reservations that cannot be decoded": {answers{"ipreservations": list(
			`{"metadata":{"namespace":"a","name":"good"},"status":{"heldUntil":"2026-11-29T08:00:00Z"}}`,
			`{"metadata":{"namespace":"a","name":"bound"},"status":{}}`,
			`{"metadata":{"namespace":"a","name":"lower"},"status":{"heldUntil":"2026-11-29t08:00:00z"}}`,
			`{"metadata":{"namespace":"a","name":"list"},"status":{"heldUntil":[]}}`)},
			[]string{"ObjectUndecodable", "ObjectUndecodable"}},
		"a NodeAddressPool that cannot be decoded": {answers{"nodeaddresspools": list(`{"metadata":{"name":"node1"},
			"status":{"conditions":[{"lastTransitionTime":"2026-11-29T08:00:00Z"},
			{"lastTransitionTime":"2026-11-29T08:00:00+99:99"}]}}`)}, []string{"ObjectUndecodable"}},
		"limits": {answers{"configmap leasehold-limits": `{"data":{"maxHeld":"some"}}`}, []string{"LimitsInvalid"}},
		"a key that nothing reads": {answers{"statefulsets": annotated("", `"reserved-ip-duration":"1"`)},
			[]string{"AnnotationUnread"}},
		"a Deployment without a name": {answers{"deployments": annotated("",
			`"io.kubernetes.cri/reserved-ip-duration":"1"`)},
			[]string{"AnnotationUnread"}},
		"a Deployment with a name": {answers{"deployments": annotated("",
			`"io.kubernetes.cri/reserved-ip-duration":"1","leasehold.dev/reserve-as":"web"`)}, nil},
		"a Deployment that asks for nothing": {answers{"deployments": annotated("",
			`"io.kubernetes.cri/reserved-ip-duration":"0"`)}, nil},
		"a policy rejects a pinned pod": {rejected(3, `"io.kubernetes.cri/reserved-ip-duration":"10m"`),
			[]string{"PodRejected"}},
		"a policy rejected a pod, and all exist":  {rejected(2, `"io.kubernetes.cri/reserved-ip-duration":"10m"`), nil},
		"a policy rejects a pod without a window": {rejected(3, ""), nil},
		"an annotation of the set": {
			answers{"statefulsets": annotated(`"io.kubernetes.cri/reserved-ip-duration":"1"`, "")},
			[]string{"AnnotationUnread"}},
	}
	for _, f := range all {
		for words, healthy := range (answers{"deployment": workload("v1", 2), "endpointslice": endpoints}) {
			if _, has := f.answers[words]; !has {
				f.answers[words] = healthy
			}
		}
	}
	return all
}

// answers are what kubectl prints, by words of its arguments.
type answers map[string]string

// faulty is a cluster with a fault.
type faulty struct {
	answers
	want []string // reasons, and after ": " a text in the finding
}
