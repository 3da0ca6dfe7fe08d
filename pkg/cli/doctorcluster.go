package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// examine makes all checks of the cluster. It examines each node too if nodes is set.
func (c *cluster) examine(ctx context.Context, nodes bool) report {
	return examine(ctx, []check{{"objects", c.checkObjects}, {"manager", c.checkManager}, {"agents", c.checkAgents},
		{"nodes", func(ctx context.Context) ([]finding, error) { return c.checkNodes(ctx, nodes) }},
		{"annotations", c.checkWorkloads}, {"limits", c.checkLimits}})
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
func (c *cluster) checkObjects(ctx context.Context) (found []finding, err error) {
	for _, o := range objects {
		all, e := c.items(ctx, "-n", c.system, o.kind)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		var missing []string
		for _, name := range o.names {
			if !slices.ContainsFunc(all, func(o object) bool { return nameOf(o) == name }) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			found = append(found, finding{Reason: "ObjectMissing", Subject: o.kind + " " + missing[0], Why: o.why,
				What: "not in the cluster: " + strings.Join(missing, ", "),
				Decide: "whether it was removed on purpose. If not, apply the manifests again from which leasehold " +
					"was installed"})
		}
	}
	return found, err
}

// policies are the names of the ValidatingAdmissionPolicies, and of their bindings.
var policies = []string{
	"leasehold-agent", "leasehold-agent-events", "leasehold-agent-pool", "leasehold-annotations",
	"leasehold-former-modes", "leasehold-generated-names", "leasehold-limits", "leasehold-manager",
	"leasehold-manager-events", "leasehold-manager-lease", "leasehold-manager-persistentpodstates",
	"leasehold-manager-pools", "leasehold-manager-webhooks", "leasehold-namespaces", "leasehold-requests",
	"leasehold-reservations",
}

func (c *cluster) checkManager(ctx context.Context) ([]finding, error) {
	m, err := c.own(ctx, "deployment", managerName)
	if err != nil || m == nil {
		return nil, err
	}
	f := finding{Reason: "ManagerDown", Subject: "Deployment " + managerName,
		Why: "pods are not brought back to their nodes"}
	wanted := m.Number("spec", "replicas")
	switch {
	case wanted == 0:
		f.What = "it is scaled to zero"
		f.Decide = "whether the pin is to be off, or leasehold is being removed. If not: " +
			command("kubectl", "-n", c.system, "scale", "deployment/"+managerName, "--replicas=2")
	case m.Number("status", "readyReplicas") == 0:
		f.What = fmt.Sprintf("none of its %d replicas is ready", wanted)
		f.Repair = []string{restartManager(c.system)}
	default:
		return nil, nil
	}
	return []finding{f}, nil
}

func (c *cluster) checkAgents(ctx context.Context) (found []finding, err error) {
	pods, err := c.agentPods(ctx)
	for _, p := range pods {
		started, e := time.Parse(time.RFC3339, p.Text("status", "startTime"))
		isReady := slices.ContainsFunc(p.List("status", "conditions"), func(c object) bool {
			return c.Text("type") == "Ready" && c.Text("status") == "True"
		})
		if isReady || e != nil || c.Clock().Wall.Sub(started) < time.Minute {
			continue
		}
		name := nameOf(p)
		what := "the pod " + name + " is not ready"
		if out, err := c.kubectl(ctx, nil, "-n", c.system, "logs", name, "-c", "agent",
			"--tail=1"); err == nil && len(out) > 0 {
			what += "; its last line: " + strings.TrimSpace(string(out))
		}
		found = append(found, finding{Reason: "AgentNotReady", Subject: "node " + nodeOf(p),
			What: what, Why: "nothing that is over or dead is released on the node",
			Repair: []string{replaceAgent(c.system, name)}})
	}
	return found, err
}

// checkNodes examines each node by running leasectl in the pod of its agent, if nodes is set. Of
// the other nodes, it reports the networks for which leasehold is not active according to the
// NodeAddressPool: users may be allowed to read that object, but not to run programs in the pod.
func (c *cluster) checkNodes(ctx context.Context, nodes bool) (found []finding, err error) {
	var agents []object
	if nodes {
		agents, err = c.agents(ctx)
	}
	seen := map[string]bool{}
	for _, a := range agents {
		node := nodeOf(a)
		var r report
		if e := c.readNode(ctx, a, &r, "doctor"); e != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", node, e))
			continue
		}
		seen[node] = true
		for _, u := range r.Unchecked {
			err = errors.Join(err, fmt.Errorf("node %s: %s: %s", node, u.Check, u.Error))
		}
		for _, f := range r.Findings {
			f.Subject = "node " + node + ": " + f.Subject
			for i, line := range f.Repair {
				if args, ok := strings.CutPrefix(line, "leasectl "); ok {
					f.Repair[i] = command(append([]string{"kubectl"}, c.onNode(a)...)...) + " " + args
				}
			}
			found = append(found, f)
		}
	}
	pools, e := c.items(ctx, poolKind)
	for _, p := range pools {
		node := nameOf(p)
		for _, n := range p.List("status", "networks") {
			if n.Text("active") != "False" || seen[node] && n.Text("reason") != "PodWithoutLease" {
				continue
			}
			f := finding{Reason: n.Text("reason"), Subject: "node " + node + ": network " + n.Text("name"),
				What: n.Text("message"), Why: notKept,
				Decide: "leasectl doctor says more on the node, as does kubectl leasehold doctor without --nodes=false"}
			if f.Reason == "PodWithoutLease" {
				f.Decide = "which directories the runtime uses; the flags are in the DaemonSet " + agentName
			}
			found = append(found, f)
		}
	}
	return found, errors.Join(err, e)
}
