package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
)

// Cluster is a cluster to examine.
type Cluster struct {
	Kubectl *kubectl.Client
	Now     func() time.Time
	Nodes   bool // whether to examine each node too, in the pod of its agent
}

// clusterChecks are the checks of a cluster.
var clusterChecks = []check[*Cluster]{
	{"objects", checkObjects},
	{"manager", checkManager},
	{"agents", checkAgents},
	{"nodes", checkNodes},
	{"annotations", checkWorkloads},
	{"limits", checkLimits},
}

// Examine makes all checks of the cluster.
func (c *Cluster) Examine(ctx context.Context) Report { return examine(ctx, c, clusterChecks) }

// The names of leasehold's workloads.
const (
	agentName   = "leasehold-agent"
	managerName = "leasehold-manager"
)

// items returns the objects in a list that kubectl gets with the given arguments.
func (c *Cluster) items(ctx context.Context, args ...string) ([]kubectl.Object, error) {
	list, err := c.Kubectl.Get(ctx, args...)
	return list.List("items"), err
}

// objects are objects of the manifests, and what their absence leads to.
var objects = []struct {
	kind  string
	names []string
	why   string
}{
	{"crd", []string{"addressrequests.ipam.leasehold.dev", "ipreservations.ipam.leasehold.dev",
		"nodeaddresspools.ipam.leasehold.dev"},
		"agents cannot publish reservations, so that pods are not brought back to their nodes"},
	{"validatingadmissionpolicy", policies, unconfined},
	{"validatingadmissionpolicybinding", policies, unconfined},
	{"mutatingwebhookconfiguration", []string{managerName}, "pods are not brought back to their nodes"},
	{"deployment", []string{managerName}, "pods are not brought back to their nodes"},
	{"daemonset", []string{agentName}, "windows of annotations do not arrive, and no reservation is published"},
}

const unconfined = "invalid annotations are accepted, or leasehold's accounts may do more than they need: whoever " +
	"has an agent's token may write the reservations of other nodes"

// checkObjects finds objects of the manifests that are missing. doctor does not know which version
// is installed, for which platform, by which tool and with which changes: other manifests may put
// the plugin in another place, or deny the agents their writes. So it prints no command.
func checkObjects(ctx context.Context, c *Cluster) (found []Finding, err error) {
	for _, o := range objects {
		all, e := c.items(ctx, "-n", c.Kubectl.Namespace, o.kind)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		var missing []string
		for _, name := range o.names {
			if !slices.ContainsFunc(all, func(o kubectl.Object) bool { return o.Text("metadata", "name") == name }) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			found = append(found, Finding{Reason: "ObjectMissing", Subject: o.kind + " " + missing[0], Why: o.why,
				What: "not in the cluster: " + strings.Join(missing, ", "),
				Decide: "whether it was removed on purpose. If not, apply the manifests again from which leasehold " +
					"was installed"})
		}
	}
	return found, err
}

// condition returns the status of an object's condition of the given type, "" if the object has no
// such condition.
func condition(o kubectl.Object, kind string) string {
	for _, c := range o.List("status", "conditions") {
		if c.Text("type") == kind {
			return c.Text("status")
		}
	}
	return ""
}

// policies are the names of the ValidatingAdmissionPolicies, and of their bindings.
var policies = []string{
	"leasehold-agent", "leasehold-agent-events", "leasehold-agent-pool", "leasehold-annotations",
	"leasehold-former-modes", "leasehold-generated-names", "leasehold-limits", "leasehold-manager",
	"leasehold-manager-events", "leasehold-manager-lease", "leasehold-manager-persistentpodstates",
	"leasehold-manager-pools", "leasehold-manager-webhooks", "leasehold-namespaces", "leasehold-requests",
	"leasehold-reservations",
}

func checkManager(ctx context.Context, c *Cluster) ([]Finding, error) {
	m, err := c.Kubectl.Own(ctx, "deployment", managerName)
	if err != nil || m == nil {
		return nil, err
	}
	f := Finding{Reason: "ManagerDown", Subject: "Deployment " + managerName,
		Why: "pods are not brought back to their nodes"}
	wanted := m.Number("spec", "replicas")
	switch {
	case wanted == 0:
		f.What = "it is scaled to zero"
		f.Decide = "whether the pin is to be off, or leasehold is being removed. If not: " +
			command("kubectl", "-n", c.Kubectl.Namespace, "scale", "deployment/"+managerName, "--replicas=2")
	case m.Number("status", "readyReplicas") == 0:
		f.What = fmt.Sprintf("none of its %d replicas is ready", wanted)
		f.Repair = []string{restartManager(c.Kubectl.Namespace)}
	default:
		return nil, nil
	}
	return []Finding{f}, nil
}

func checkAgents(ctx context.Context, c *Cluster) (found []Finding, err error) {
	pods, err := c.Kubectl.Pods(ctx, agentName)
	for _, p := range pods {
		started, e := time.Parse(time.RFC3339, p.Text("status", "startTime"))
		if condition(p, "Ready") == "True" || e != nil || c.Now().Sub(started) < time.Minute {
			continue
		}
		name := p.Text("metadata", "name")
		what := "the pod " + name + " is not ready"
		if out, err := c.Kubectl.Run(ctx, nil, "-n", c.Kubectl.Namespace, "logs", name, "-c", "agent",
			"--tail=1"); err == nil && len(out) > 0 {
			what += "; its last line: " + strings.TrimSpace(string(out))
		}
		found = append(found, Finding{Reason: "AgentNotReady", Subject: "node " + p.Text("spec", "nodeName"),
			What: what, Why: "nothing that is over or dead is released on the node",
			Repair: []string{replaceAgent(c.Kubectl.Namespace, name)}})
	}
	return found, err
}

// checkNodes examines each node by running leasectl in the pod of its agent, if c.Nodes is set. Of
// the other nodes, it reports the networks for which leasehold is not active according to the
// NodeAddressPool: users may be allowed to read that object, but not to run programs in the pod.
func checkNodes(ctx context.Context, c *Cluster) (found []Finding, err error) {
	seen := map[string]bool{}
	if c.Nodes {
		agents, e := c.Kubectl.Agents(ctx, "")
		err = errors.Join(err, e)
		for _, a := range agents {
			node, name := a.Node, a.Pod
			var report Report
			if e := c.Kubectl.ReadNode(ctx, name, &report, "doctor"); e != nil {
				err = errors.Join(err, fmt.Errorf("node %s: %w", node, e))
				continue
			}
			seen[node] = true
			for _, u := range report.Unchecked {
				err = errors.Join(err, fmt.Errorf("node %s: %s: %s", node, u.Check, u.Error))
			}
			for _, f := range report.Findings {
				f.Subject = "node " + node + ": " + f.Subject
				for i, line := range f.Repair {
					f.Repair[i] = c.fromOutside(line, node, name)
				}
				found = append(found, f)
			}
		}
	}
	pools, e := c.items(ctx, "nodeaddresspools.ipam.leasehold.dev")
	if e != nil {
		return found, errors.Join(err, e)
	}
	for _, p := range pools {
		node := p.Text("metadata", "name")
		for _, n := range p.List("status", "networks") {
			if n.Text("active") != "False" || seen[node] && n.Text("reason") != "PodWithoutLease" {
				continue
			}
			f := Finding{Reason: n.Text("reason"), Subject: "node " + node + ": network " + n.Text("name"),
				What: n.Text("message"), Why: notKept,
				Decide: "leasectl doctor says more on the node, as does kubectl leasehold doctor without --nodes=false"}
			if f.Reason == "PodWithoutLease" {
				f.Decide = "which directories the runtime uses; the flags are in the DaemonSet " + agentName
			}
			found = append(found, f)
		}
	}
	return found, err
}

// fromOutside returns the command that runs a command of a node from elsewhere. leasectl is run in
// the pod of the agent, kubectl where it is called, and everything else over SSH.
func (c *Cluster) fromOutside(line, node, pod string) string {
	if args, ok := strings.CutPrefix(line, "leasectl "); ok {
		return command(append([]string{"kubectl"}, c.Kubectl.OnNode(pod)...)...) + " " + args
	}
	if strings.HasPrefix(line, "kubectl ") {
		return line
	}
	return command("ssh", node, line)
}
