package permissions

import "fmt"

// managerPlus is an account of the table: the manager's, should roles allow it everything.
const managerPlus = "manager+"

// An account is a service account, and the node to which its token is bound, "" for none.
type account struct{ namespace, name, node string }

// accounts are those who try to write.
var accounts = map[string]account{
	"manager":   {"leasehold-system", "leasehold-manager", ""},
	managerPlus: {"leasehold-system", "leasehold-manager", ""},
	"agent-1":   {"leasehold-system", "leasehold-agent", "node-1"},
	"agent-2":   {"leasehold-system", "leasehold-agent", "node-2"},
	// The token of an agent that somebody has taken from its node, and used with no pod.
	"unbound": {"leasehold-system", "leasehold-agent", ""},
	// An account that is named like the agent's, and may do everything in the namespace tenant.
	"impostor": {"tenant", "leasehold-agent", "node-2"},
	"admin":    {"tenant", "admin", ""}, // has the role of that name in the namespace tenant
	"all":      {"tenant", "all", ""},   // may do everything there
}

// confining are the prefixes of the names of the policies that restrict accounts.
var confining = []string{"leasehold-agent", "leasehold-manager", "leasehold-reservations", "leasehold-limits",
	"leasehold-requests"}

// explaining are the messages of validations whose writes another validation refuses, too, with a
// text that says less.
var explaining = []string{"the token of the agent is not bound to a pod on a node"}

const (
	mutating   = "mutatingwebhookconfigurations"
	validating = "validatingwebhookconfigurations"
	events     = "events.events.k8s.io" // there are others, of the core group
	ours       = "leasehold-manager"
)

func reservation(node string) string {
	return fmt.Sprintf("spec: {podName: web-0, nodeName: %s, nodeUID: \"UID(%[1]s)\"}", node)
}

// event returns an Event about an object. The namespace of an Event about a node is default.
func event(controller, instance, kind, name string) string {
	namespace := "tenant"
	if kind == "Node" {
		namespace = "default"
	}
	return fmt.Sprintf(`{eventTime: "2026-01-01T00:00:00.000000Z", reportingController: %s, reportingInstance: %s,
		action: Assign, reason: AddressKept, type: Normal, note: kept,
		regarding: {apiVersion: v1, kind: %s, namespace: %s, name: %s}}`, controller, instance, kind, namespace, name)
}

// retained returns a pod with a window.
func retained(window string) string {
	return fmt.Sprintf(`{metadata: {annotations: {io.kubernetes.cri/reserved-ip-duration: %q}},
		spec: {containers: [{name: c, image: none}]}}`, window)
}

const (
	request = `spec: {entries: [{podName: web-0, addresses: ["10.0.0.5"]}]}`
	bound   = `[{"op": "replace", "path": "/status/addresses/0/state", "value": "Bound"}]`
)

// published are the writes of the agents before all others.
var published = []attempt{
	{"agent-1", "create", "ipreservations", "tenant/web-0-1", reservation("node-1"), ""},
	{"agent-2", "create", "ipreservations", "tenant/web-0-2", reservation("node-2"), ""},
	{"agent-1", "patch", "ipreservations/status", "tenant/web-0-1",
		`{"status": {"state": "Bound", "id": "0123456789abcdef"}}`, ""},
	{"agent-1", "create", "nodeaddresspools", "node-1", "", ""},
	{"agent-2", "create", "nodeaddresspools", "node-2", "", ""},
	{"agent-1", "create", events, "tenant/agents", event("leasehold-agent", "node-1", "Pod", "running"), ""},
	{"manager", "create", events, "tenant/managers", event("leasehold-manager", "m", "Pod", "waiting"), ""},
	{"agent-1", "update", "addressrequests/status", "tenant/requested", `[{"op": "add", "path": "/status",
		"value": {"addresses": [{"address": "10.0.0.5", "nodeName": "node-1", "state": "Held"}]}}]`, ""},
}

// allRule is what an attacker would want.
const allRule = `{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}`

// attempts is the table. What is refused is refused by the validation with that message. What the
// roles allow at all is in roles.txt.
var attempts = []attempt{
	// The manager: webhook configurations.
	{"manager", "update", mutating, ours,
		`[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "QQ=="}]`,
		""},
	{"manager", "update", mutating, ours,
		`[{"op": "replace", "path": "/webhooks/0/rules", "value": [` + allRule + `]}]`,
		"the manager may only change the caBundle of its webhook configuration"},
	{"manager", "update", mutating, ours, `[{"op": "replace", "path": "/webhooks/0/clientConfig",
		"value": {"url": "https://attacker.example.com/"}}]`,
		"the manager may only change the caBundle of its webhook configuration"},
	{"manager", "update", mutating, ours, `[{"op": "remove", "path": "/webhooks/0/matchConditions"}]`,
		"the manager may only change the caBundle of its webhook configuration"},
	{"manager", "update", mutating, ours, `[{"op": "copy", "from": "/webhooks/0", "path": "/webhooks/1"},
		{"op": "replace", "path": "/webhooks/1/name", "value": "another.leasehold.dev"}]`,
		"the manager may only change the caBundle of its webhook configuration"},
	{"manager", "update", mutating, ours,
		`[{"op": "add", "path": "/metadata/finalizers", "value": ["a.example.com/b"]}]`,
		"the manager may not change the metadata of a webhook configuration"},
	{managerPlus, "update", mutating, "other", `[]`, "the manager may only change its own webhook configurations"},
	{managerPlus, "create", mutating, "new", "", "the manager may neither create nor delete webhook configurations"},
	{managerPlus, "create", validating, "new", "",
		"the manager may neither create nor delete webhook configurations"},
	{managerPlus, "delete", mutating, ours, "",
		"the manager may neither create nor delete webhook configurations"},

	// The manager: PersistentPodStates.
	{"manager", "create", "persistentpodstates", "tenant/new", `{metadata: {labels: {leasehold.dev/generated: "true"}},
		spec: {targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}, requiredPersistentTopology: {keys: [zone]}}}`,
		""},
	{"manager", "patch", "persistentpodstates", "tenant/generated",
		`{"spec": {"targetRef": {"apiVersion": "apps/v2"}}}`, ""},
	{"manager", "patch", "persistentpodstates", "tenant/of-a-user",
		`{"spec": {"preferredPersistentTopology": []}}`, ""},
	{"manager", "delete", "persistentpodstates", "tenant/generated", "", ""},
	{"manager", "create", "persistentpodstates", "tenant/new",
		`spec: {targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web},
		requiredPersistentTopology: {keys: [zone]}}`,
		"the manager may only create and delete PersistentPodStates that it generates"},
	{"manager", "delete", "persistentpodstates", "tenant/of-a-user", "",
		"the manager may only create and delete PersistentPodStates that it generates"},
	{"manager", "patch", "persistentpodstates", "tenant/of-a-user",
		`{"spec": {"targetRef": {"apiVersion": "apps/v2"}}}`,
		"the manager may not change the target of a PersistentPodState that it has not generated"},

	// The manager: pods.
	{"manager", "delete", "pods", "tenant/waiting", "", ""},
	{"manager", "delete", "pods", "tenant/running", "", "the manager may only delete pods that are not scheduled"},
	{"manager", "delete", "pods", "tenant/other", "",
		"the manager may only delete pods that it has restricted to a node and that a controller creates again"},
	{"manager", "delete without uid", "pods", "tenant/waiting", "",
		"the manager must set the precondition uid to delete pods"},

	// The manager: its Secret.
	{"manager", "update", "secrets", "leasehold-system/leasehold-manager", `[]`, ""},

	// The manager: events, and the Lease of its leader election.
	{"manager", "create", events, "tenant/e", event("leasehold-manager", "m", "Pod", "waiting"), ""},
	{"manager", "patch", events, "tenant/managers", `{"series": {"count": 2,
		"lastObservedTime": "2026-01-01T00:00:01.000000Z"}}`, ""},
	{"manager", "create", events, "tenant/e", event("kubelet", "m", "Pod", "waiting"),
		"the manager may only write events with the reportingController leasehold-manager"},
	{"manager", "patch", events, "tenant/agents", `{"series": {"count": 2,
		"lastObservedTime": "2026-01-01T00:00:01.000000Z"}}`,
		"the manager may only write events with the reportingController leasehold-manager"},
	{"manager", "patch", "nodeaddresspools", "node-1",
		`{"spec": {"reservations": [{"namespace": "tenant", "name": "web-0-1"}]}}`, ""},
	{"manager", "patch", "nodeaddresspools", "node-1", `{"metadata": {"labels": {"a": "b"}}}`,
		"the manager may only change the spec of a NodeAddressPool"},
	{"manager", "patch", "nodeaddresspools", "node-1", `{"metadata": {"finalizers": ["a.example.com/b"]}}`,
		"the manager may only change the spec of a NodeAddressPool"},
	{"manager", "patch", "nodeaddresspools", "node-1",
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "1"}]}}`,
		"the manager may only change the spec of a NodeAddressPool"},
	{managerPlus, "patch", "nodeaddresspools/status", "node-1", `{"status": {"bound": 1, "held": 0}}`,
		" denied request: "}, // by two policies
	{managerPlus, "delete", "nodeaddresspools", "node-1", "",
		"the manager may only change the spec of a NodeAddressPool"},
	{"manager", "create", "leases", "leasehold-system/leasehold-manager", "", ""},
	{"manager", "create", "leases", "leasehold-system/other", "",
		"the manager may only create the Lease of its leader election"},

	// The manager: requested addresses.
	{"manager", "update", "addressrequests/status", "tenant/requested", `[{"op": "add", "path": "/status/addresses/-",
		"value": {"address": "10.9.0.1", "state": "Rejected"}}]`, ""},
	{"manager", "update", "addressrequests/status", "tenant/requested", bound,
		"the manager may only write addresses without a node"},

	// An agent, whose token names its node.
	{"agent-1", "update", "addressrequests/status", "tenant/requested", bound, ""},
	{"agent-2", "update", "addressrequests/status", "tenant/requested", `[{"op": "add", "path": "/status/addresses/-",
		"value": {"address": "10.0.1.5", "nodeName": "node-2", "state": "Held"}}]`, ""},
	{"agent-2", "update", "addressrequests/status", "tenant/requested", bound,
		"may only write the addresses of its node"},
	{"agent-2", "update", "addressrequests/status", "tenant/requested",
		`[{"op": "remove", "path": "/status/addresses/0"}]`, "may only write the addresses of its node"},
	{"unbound", "update", "addressrequests/status", "tenant/requested", `[]`,
		"the token of the agent is not bound to a pod on a node"},
	{"agent-1", "patch", "ipreservations", "tenant/web-0-1",
		`{"metadata": {"labels": {"leasehold.dev/pod-hash": "b"}}}`, ""},
	{"agent-1", "patch", "ipreservations/status", "tenant/web-0-1", `{"status": {"state": "Held"}}`, ""},
	{"agent-1", "delete", "ipreservations", "tenant/web-0-1", "", ""},
	{"agent-1", "patch", "nodeaddresspools", "node-1", `{"metadata": {"labels": {"a": "b"}}}`, ""},
	{"agent-1", "create", "ipreservations", "tenant/new", reservation("node-1") +
		"\nmetadata: {ownerReferences: [{apiVersion: v1, kind: Node, name: node-1, uid: \"UID(node-1)\"}]}", ""},
	{"agent-1", "create", "ipreservations", "tenant/new", reservation("node-2"),
		"may not write a reservation of node"},
	{"agent-1", "patch", "ipreservations", "tenant/web-0-2",
		`{"metadata": {"labels": {"leasehold.dev/pod-hash": "b"}}}`, "may not write a reservation of node"},
	{"agent-1", "patch", "ipreservations/status", "tenant/web-0-2", `{"status": {"state": "Held"}}`,
		"may not write a reservation of node"},
	{"agent-1", "delete", "ipreservations", "tenant/web-0-2", "", "may not change or delete a reservation of node"},
	{"unbound", "delete", "ipreservations", "tenant/web-0-1", "",
		"the token of the agent is not bound to a pod on a node"},
	{"agent-1", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"finalizers": ["a.example.com/b"]}}`,
		"the agent may not change annotations, finalizers or other owners than its node of a reservation"},
	{"agent-1", "create", "ipreservations", "tenant/new", reservation("node-1") +
		"\nmetadata: {finalizers: [a.example.com/b]}",
		"the agent may not change annotations, finalizers or other owners than its node of a reservation"},
	{"agent-1", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"annotations": {"a": "b"}}}`,
		"the agent may not change annotations, finalizers or other owners than its node of a reservation"},
	{"agent-1", "create", "ipreservations", "tenant/new", reservation("node-1") +
		"\nmetadata: {ownerReferences: [{apiVersion: v1, kind: Pod, name: other, uid: \"1\"}]}",
		"the agent may not change annotations, finalizers or other owners than its node of a reservation"},
	{"agent-1", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"labels": {"a": "b"}}}`,
		"the agent may only set the labels node-hash and pod-hash of a reservation"},
	{"agent-1", "create", "ipreservations", "tenant/new", reservation("node-1") + "\nmetadata: {labels: {a: b}}",
		"the agent may only set the labels node-hash and pod-hash of a reservation"},
	{"agent-1", "create", "nodeaddresspools", "new", "", "may not write the NodeAddressPool of node"},
	{"agent-1", "patch", "nodeaddresspools", "node-2", `{"metadata": {"labels": {"a": "b"}}}`,
		"may not write the NodeAddressPool of node"},
	{"agent-1", "patch", "nodeaddresspools", "node-1", `{"metadata": {"finalizers": ["a.example.com/b"]}}`,
		"the agent may not change finalizers of a NodeAddressPool"},
	{"unbound", "create", "nodeaddresspools", "new", "", "the token of the agent is not bound to a pod on a node"},
	{"agent-1", "create", events, "tenant/e", event("leasehold-agent", "node-1", "Pod", "running"), ""},
	{"agent-1", "create", events, "default/e", event("leasehold-agent", "node-1", "Node", "node-1"), ""},
	{"agent-1", "create", events, "tenant/e", event("kubelet", "node-1", "Pod", "running"),
		"may only write events with the reportingController"},
	{"agent-1", "create", events, "tenant/e", event("leasehold-agent", "node-2", "Pod", "running"),
		"may only write events with the reportingController"},
	{"agent-1", "create", events, "default/e", event("leasehold-agent", "node-1", "Node", "node-2"),
		"may only write events about pods and about its node"},
	{"agent-1", "create", events, "tenant/e", event("leasehold-agent", "node-1", "Secret", "s"),
		"may only write events about pods and about its node"},
	{"unbound", "create", events, "tenant/e", event("leasehold-agent", "node-1", "Pod", "running"),
		"the token of the agent is not bound to a pod on a node"},

	// Users: those with the three roles for a namespace, and one who may do everything in it.
	{"admin", "patch", "ipreservations", "tenant/web-0-1", `{"spec": {"release": "0123456789abcdef"}}`, ""},
	{"admin", "patch", "ipreservations", "tenant/web-0-1", `{"spec": {"release": "fedcba9876543210"}}`,
		"spec.release is not the id of the lease"},
	{"admin", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"annotations": {"a": "b"}}}`, ""},
	{"admin", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"labels": {"leasehold.dev/pod-hash": "b"}}}`,
		"only agents may change labels leasehold.dev/..., and there may be at most 1000 labels"},
	{"admin", "patch", "ipreservations", "tenant/web-0-1", `{"metadata": {"finalizers": ["a.example.com/b"]}}`,
		"nobody may add finalizers to a reservation"},
	{"admin", "create", "addressrequests", "tenant/new", request, ""},
	{"admin", "patch", "addressrequests", "tenant/requested", `{"spec": {"wait": true}}`, ""},
	{"admin", "delete", "addressrequests", "tenant/requested", "", ""},
	{"all", "update", "addressrequests/status", "tenant/requested", bound,
		"only the agents and the manager may change the status"},
	{"admin", "create", "pods", "tenant/new", retained("60"), ""},
	{"admin", "create", "pods", "tenant/new", retained("90m"), "\" is longer than namespace"},
	{"admin", "create", "pods", "tenant/new", retained("forever"), "may not reserve"},
	{"all", "delete", "ipreservations", "tenant/web-0-1", "", ""}, // its agent publishes it again
	{"all", "create", "ipreservations", "tenant/new", reservation("node-2"),
		"only the agent of a node may create its reservations and its NodeAddressPool"},
	{"all", "patch", "ipreservations/status", "tenant/web-0-1", `{"status": {"state": "Held"}}`,
		"only the agent of the node may change the status"},
	{"impostor", "create", "ipreservations", "tenant/new", reservation("node-2"),
		"only the agent of a node may create its reservations and its NodeAddressPool"},
}
