package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

func (c *cluster) doctor() *cobra.Command {
	var nodes bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong in the cluster, and how to repair it",
		Long: `Check leasehold's objects, policies, webhooks and pods, the annotations of workloads,
and each node as "leasectl doctor" does there. Each finding says what was found and
what it leads to. It has a command that repairs it if running that can do no harm;
otherwise it says what there is to decide. Nothing is changed.
Nodes are checked in the pods of their agents, which needs the right to create
pods/exec in leasehold's namespace; --nodes=false does without.

The exit status is 0 if nothing was found, 1 if something was, and 2 if nothing was
found but something could not be checked.`,
		Example: "  kubectl leasehold doctor\n  kubectl leasehold doctor --nodes=false -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.PrintReport(c.examine(cmd.Context(), nodes))
		},
	}
	c.OutputFlag(command)
	command.Flags().BoolVar(&nodes, "nodes", true, "examine each node too")
	return command
}

// clusterDoctor examines a cluster. Each check reads what it needs, but for what several need. What
// could not be read of that is missing in it.
type clusterDoctor struct {
	*cluster
	*cli.Report
	nodes  []object // those that can have an agent
	agents []object // the pods of the DaemonSet
	daemon object   // the DaemonSet, nil if there is none
	pools  []object // the NodeAddressPools
	// named reports whether a configuration of a node names leasehold.
	named bool
	// reports, networks and workloads are the numbers of what was looked at.
	reports, networks, workloads int
}

// examine makes all checks of the cluster. It examines each node too if nodes is set.
func (c *cluster) examine(ctx context.Context, nodes bool) *cli.Report {
	d := &clusterDoctor{cluster: c, Report: cli.NewReport()}
	d.Check(ctx, "agents", d.readAgents)
	d.Check(ctx, "nodes", func(ctx context.Context) { d.pools = d.list(ctx, poolKind) })
	d.Check(ctx, "objects", d.checkObjects)
	d.Check(ctx, "times", d.checkTimes)
	d.Check(ctx, "manager", d.checkManager)
	d.Check(ctx, "agents", d.checkAgents)
	d.Check(ctx, "shared ranges", d.checkShared)
	d.Check(ctx, "nodes", func(ctx context.Context) { d.checkNodes(ctx, nodes) })
	d.Check(ctx, "flannel", d.checkFlannel)
	d.Check(ctx, "annotations", d.checkWorkloads)
	d.Check(ctx, "policies", d.checkRejected)
	d.Check(ctx, "limits", d.checkLimits)
	for i, f := range d.Findings {
		d.Findings[i].Decide = c.withFlags(f.Decide)
		for n, line := range f.Repair {
			f.Repair[n] = c.withFlags(line)
		}
	}
	d.Examined = append(d.Examined, fmt.Sprintf("%d nodes (%d with leasectl)", len(d.nodes), d.reports),
		fmt.Sprintf("%d agents", len(d.agents)), fmt.Sprintf("%d networks of %d nodes", d.networks, len(d.pools)),
		fmt.Sprintf("%d workloads and pods", d.workloads))
	return d.Report
}

// readAgents reads the nodes and their agents.
func (d *clusterDoctor) readAgents(ctx context.Context) {
	var err error
	d.nodes = d.list(ctx, "node", "-l", "kubernetes.io/os=linux")
	d.agents, err = d.agentPods(ctx)
	d.Fail(err)
	d.daemon, err = d.own(ctx, "daemonset", cli.AgentName)
	d.Fail(err)
}

// list returns the objects that items returns, for a check that works with those that it gets.
func (d *clusterDoctor) list(ctx context.Context, args ...string) []object {
	all, err := d.items(ctx, args...)
	d.Fail(err)
	return all
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
	{"mutatingwebhookconfiguration", []string{cli.ManagerName}, notPinned},
	{"clusterrole", clusterRoles, withoutRights},
	{"clusterrolebinding", clusterRoles, withoutRights},
	{"role", []string{cli.AgentName + "-limits", cli.ManagerName}, withoutRights},
	{"rolebinding", []string{cli.AgentName + "-limits", cli.ManagerName}, withoutRights},
	{"service", []string{cli.ManagerName},
		"the API server does not reach the webhook: " + notPinned},
	{"deployment", []string{cli.ManagerName}, notPinned},
	{"daemonset", []string{cli.AgentName}, "windows of annotations do not arrive, and no reservation is published"},
}

const (
	notPinned  = "pods are not brought back to their nodes"
	unconfined = "invalid annotations are accepted, or leasehold's accounts may do more than they need: whoever " +
		"has an agent's token may write the reservations of other nodes"
	withoutRights = "the API server refuses what the agents or the manager ask for: windows do not arrive, no " +
		"reservation is published, pods are not brought back to their nodes, or PersistentPodStates have no effect"
)

// clusterRoles are the names of the ClusterRoles of agents and manager, and of their bindings.
var clusterRoles = []string{cli.AgentName, cli.ManagerName, cli.ManagerName + "-kinds", cli.ManagerName + "-topology"}

// checkObjects finds objects of the manifests that are missing. doctor does not know which version
// is installed, for which platform, by which tool and with which changes: other manifests may put
// the plugin in another place, or deny the agents their writes. So it prints no command.
func (d *clusterDoctor) checkObjects(ctx context.Context) {
	for _, o := range objects {
		all, err := d.items(ctx, "-n", cli.Namespace, o.kind)
		if err != nil {
			d.Fail(err)
			continue
		}
		var missing []string
		for _, name := range o.names {
			if find(all, name, "metadata", "name") == nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			d.Find(cli.Finding{Reason: "ObjectMissing", Subject: o.kind + " " + missing[0], Why: o.why,
				What: "not in the cluster: " + strings.Join(missing, ", "),
				Decide: "whether it was removed on purpose. If not, apply the manifests again from which leasehold " +
					"was installed"})
		}
	}
}

// checkTimes finds objects that the manager and the agents cannot decode because of a time, and so
// ignore. The CRDs reject such a time, so the objects are older, or the CRDs are others.
func (d *clusterDoctor) checkTimes(ctx context.Context) {
	for _, kind := range []string{reservationKind, poolKind} {
		for _, o := range d.list(ctx, "-A", kind) {
			times := []any{o.Field("status", "heldUntil")}
			for _, condition := range o.List("status", "conditions") {
				times = append(times, condition.Field("lastTransitionTime"))
			}
			i := slices.IndexFunc(times, func(value any) bool {
				text, _ := value.(string)
				_, err := time.Parse(time.RFC3339, text)
				return value != nil && err != nil
			})
			if i >= 0 {
				d.Find(cli.Finding{Reason: "ObjectUndecodable",
					Subject: strings.TrimPrefix(namespaceOf(o)+"/"+nameOf(o), "/") + " of " + kind,
					What:    fmt.Sprintf("%v in its status is not a time", times[i]),
					Why:     "the manager and the agents ignore the object, and name it in a warning",
					Decide: "who wrote it, which no agent of leasehold does. A node that has such addresses writes " +
						"the object again if it is deleted"})
			}
		}
	}
}

// policies are the names of the ValidatingAdmissionPolicies, and of their bindings.
var policies = []string{
	"leasehold-agent", "leasehold-agent-events", "leasehold-agent-pool", "leasehold-annotations",
	"leasehold-generated-names", "leasehold-limits", "leasehold-manager", "leasehold-manager-events",
	"leasehold-manager-lease", "leasehold-manager-persistentpodstates", "leasehold-manager-pools",
	"leasehold-manager-webhooks", "leasehold-namespaces", "leasehold-requests", "leasehold-reservations",
}

// checkManager finds a manager that no pod reaches, or that is not of the version of the agents.
func (d *clusterDoctor) checkManager(ctx context.Context) {
	m, err := d.own(ctx, "deployment", cli.ManagerName)
	d.Fail(err)
	f := cli.Finding{Reason: "ManagerDown", Subject: "Deployment " + cli.ManagerName, Why: notPinned}
	switch wanted := m.Number("spec", "replicas"); {
	case m == nil: // checkObjects finds that
	case wanted == 0:
		f.What = "it is scaled to zero"
		f.Decide = "whether the pin is to be off, or leasehold is being removed. If not: " +
			"kubectl -n " + cli.Namespace + " scale deployment/" + cli.ManagerName + " --replicas=2"
		d.Find(f)
	case m.Number("status", "readyReplicas") == 0:
		f.What = fmt.Sprintf("none of its %d replicas is ready", wanted)
		f.Repair = []string{cli.RestartManager}
		pods, err := d.podsOf(ctx, cli.ManagerName)
		d.Fail(err)
		for _, p := range pods {
			text, decide := waiting(p)
			if text != "" {
				f.What += "; " + text
			}
			if decide != "" {
				f.Repair, f.Decide = nil, decide
				break
			}
		}
		d.Find(f)
	default:
		d.checkEndpoints(ctx)
		d.checkVersions(m)
	}
}

// checkEndpoints checks whether the Service of the webhook leads to a ready pod.
func (d *clusterDoctor) checkEndpoints(ctx context.Context) {
	all, err := d.items(ctx, "-n", cli.Namespace, "endpointslice", "-l", "kubernetes.io/service-name="+cli.ManagerName)
	d.Fail(err)
	isReady := func(endpoint object) bool { return endpoint.Field("conditions", "ready") == true }
	if err == nil && !slices.ContainsFunc(all, func(s object) bool {
		return slices.ContainsFunc(s.List("endpoints"), isReady)
	}) {
		d.Find(cli.Finding{Reason: "WebhookWithoutEndpoints", Subject: "Service " + cli.ManagerName,
			What: "the manager is ready, and the Service has no endpoint that is", Why: notPinned,
			Decide: "whether the Service's selector and port were changed; apply the manifests again from which " +
				"leasehold was installed"})
	}
}

// checkVersions compares the versions that the manifests give the manager and the agents. They have
// none if they were not released.
func (d *clusterDoctor) checkVersions(manager object) {
	label := []string{"metadata", "labels", "app.kubernetes.io/version"}
	if of, agents := manager.Text(label...), d.daemon.Text(label...); of != "" && agents != "" && of != agents {
		d.Find(cli.Finding{Reason: "VersionsDiffer", Subject: "Deployment " + cli.ManagerName,
			What: fmt.Sprintf("the manager is of version %s, the agents are of %s", of, agents),
			Why:  "addresses are kept; what needs a new agent and a new manager does not work yet",
			Decide: "whether an upgrade is under way. If not, apply all manifests of one version " +
				"(docs/upgrade.md)"})
	}
}

// checkAgents finds nodes without an agent that works. Of one node it finds only the first cause.
func (d *clusterDoctor) checkAgents(ctx context.Context) {
	for _, n := range d.nodes {
		if f := d.judgeNode(ctx, n); f.Reason != "" {
			f.Subject = "node " + nameOf(n)
			f.What += d.unconfirmed(nameOf(n))
			d.Find(f)
		}
	}
}

// unconfirmed returns since when the manager has found no agent that confirms what a node has
// published, "" if it has one.
func (d *clusterDoctor) unconfirmed(node string) string {
	c := conditionOf(find(d.pools, node, "metadata", "name"), "RetentionActive")
	byManager := []string{"AgentMissing", "AgentImageMissing", "AgentNotReady", "NodeNotReady"}
	if c.Text("status") != "Unknown" || !slices.Contains(byManager, c.Text("reason")) {
		return ""
	}
	return "; nobody confirms its NodeAddressPool and its reservations since " + c.Text("lastTransitionTime")
}

// checkShared finds nodes of which another one has the same addresses, by their NodeAddressPools.
func (d *clusterDoctor) checkShared(context.Context) {
	for _, p := range d.pools {
		if c := conditionOf(p, "AddressesShared"); c.Text("status") == "True" {
			d.Find(cli.Finding{Reason: "AddressesShared", Subject: "node " + nameOf(p),
				What: c.Text("message"),
				Why:  "each node assigns its addresses alone, as with host-local: two pods may have the same one",
				Decide: "whether pods of these nodes reach each other on the link. If so, give each node ranges of " +
					"its own; if the links are separate, nothing"})
		}
	}
}

const (
	nothingReleased = "nothing that is over or dead is released on the node"
	notPublished    = "windows of annotations do not arrive on the node, and its reservations and NodeAddressPool " +
		"are as they were"
)

// judgeNode returns the finding about a node and its agent, the zero finding if both work.
func (d *clusterDoctor) judgeNode(ctx context.Context, n object) cli.Finding {
	agent := find(d.agents, nameOf(n), "spec", "nodeName")
	switch {
	case !kubeletAnswers(n):
		return notReady(n)
	case isReady(n) && agent != nil:
		return d.judgeAgent(ctx, agent)
	case isReady(n) && d.daemon != nil: // checkObjects finds that there is none
		return cli.Finding{Reason: "AgentMissing", What: "it has no pod of " + cli.AgentName,
			Why: notPublished + "; where no agent has ever run, the plugin is not installed and no address is kept",
			Decide: "whether the node is to keep addresses. kubectl -n " + cli.Namespace + " describe daemonset " +
				cli.AgentName + " says why there is no pod"}
	}
	return cli.Finding{} // checkNodes finds why the node is not ready
}

// noImage are the reasons with which a kubelet reports an image that it cannot start.
var noImage = []string{"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName",
	"ImageInspectError"}

// judgeAgent returns the finding about the pod of an agent, the zero finding if it works.
func (d *clusterDoctor) judgeAgent(ctx context.Context, p object) cli.Finding {
	name := nameOf(p)
	waits, decide := waiting(p)
	switch {
	case decide != "":
		return cli.Finding{Reason: "AgentImageMissing", What: waits, Decide: decide,
			Why: "the plugin is not installed or updated there: where leasehold never ran, no address is kept; where " +
				"it did, they are, and " + notPublished}
	case isReady(p) || !d.isOld(p):
		return cli.Finding{}
	}
	f := cli.Finding{Reason: "AgentNotReady", What: "the pod " + name + " is not ready", Why: nothingReleased,
		Repair: []string{cli.ReplaceAgent(name)}}
	if waits != "" {
		f.What += ": " + waits
	}
	out, err := d.kubectl(ctx, nil, "-n", cli.Namespace, "logs", name, "-c", "agent", "--tail=1")
	last := strings.TrimSpace(string(out))
	switch {
	case err == nil && (strings.Contains(last, "forbidden") || strings.Contains(last, "Unauthorized")):
		return cli.Finding{Reason: "AgentForbidden", Why: notPublished,
			What: "the API server refuses what the agent asks for; its last line: " + last,
			Decide: "which rights were taken away: compare the ClusterRole and Role of " + cli.AgentName + " and " +
				"their bindings with the manifests, or apply those again"}
	case err == nil && last != "":
		f.What += "; its last line: " + last
	}
	return f
}

// isOld reports whether a pod started more than a minute ago. A younger one may not be ready yet.
func (d *clusterDoctor) isOld(p object) bool {
	started, err := time.Parse(time.RFC3339, p.Text("status", "startTime"))
	return err == nil && d.Clock().Wall.Sub(started) >= time.Minute
}

// waiting says for what a pod waits, "" if for nothing that is known, and what there is to decide
// if another pod in its place would wait as well.
func waiting(p object) (text, decide string) {
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, c := range p.List("status", list) {
			w := c.In("state", "waiting")
			if w == nil || w.Text("reason") == "PodInitializing" {
				continue
			}
			if slices.Contains(noImage, w.Text("reason")) {
				decide = "where the node gets the image " + c.Text("image") + " from: a registry that it reaches, or " +
					"an archive of make images that is imported on it (ctr -n k8s.io images import)"
			}
			return fmt.Sprintf("container %s of pod %s waits: %s: %s", c.Text("name"), nameOf(p), w.Text("reason"),
				w.Text("message")), decide
		}
	}
	if c := conditionOf(p, "PodScheduled"); c.Text("status") == "False" {
		return "pod " + nameOf(p) + " has no node: " + c.Text("message"), "which node is to run it"
	}
	return "", ""
}

// conditionOf returns the condition of a type in an object's status, nil if there is none.
func conditionOf(o object, kind string) object {
	return find(o.List("status", "conditions"), kind, "type")
}

func isReady(o object) bool { return conditionOf(o, "Ready").Text("status") == "True" }

// checkNodes examines each node by running leasectl in the pod of its agent, if nodes is set. Of
// the other nodes, it reports the networks for which leasehold is not active according to the
// NodeAddressPool: users may be allowed to read that object, but not to run programs in the pod.
func (d *clusterDoctor) checkNodes(ctx context.Context, nodes bool) {
	seen, hasCause := map[string]bool{}, map[string]bool{} // hasCause: why the kubelet is not ready was found
	for _, a := range d.agents {
		node := nodeOf(a)
		n := find(d.nodes, node, "metadata", "name")
		if !nodes || a.Text("status", "phase") != "Running" || n != nil && !kubeletAnswers(n) {
			continue // checkAgents has found why
		}
		var r cli.Report
		if err := d.readNode(ctx, a, &r, "doctor"); err != nil {
			d.Fail(fmt.Errorf("node %s: %w", node, err))
			continue
		}
		seen[node] = true
		d.reports++
		for _, u := range r.Unchecked {
			d.Fail(fmt.Errorf("node %s: %s: %s", node, u.Check, u.Error))
		}
		for _, f := range r.Findings {
			f.Subject = "node " + node + ": " + f.Subject
			if f.Reason == cniconf.NoConfiguration || f.Reason == cniconf.InvalidConfiguration {
				hasCause[node] = true
			}
			for i, line := range f.Repair {
				if !cli.IsOfNode(line) {
					f.Repair, f.Decide = nil, "who controls the node: leasectl doctor prints no such repair"
					break
				}
				if args, ok := strings.CutPrefix(line, "leasectl "); ok {
					f.Repair[i] = cli.ShellCommand(append([]string{"kubectl"}, d.onNode(a)...)...) + " " + args
				}
			}
			d.Find(f)
		}
	}
	for _, p := range d.pools {
		d.checkPool(p, seen[nameOf(p)])
	}
	for _, n := range d.nodes {
		if f := notReady(n); kubeletAnswers(n) && !isReady(n) && !hasCause[nameOf(n)] {
			f.Subject = "node " + nameOf(n)
			d.Find(f)
		}
	}
}

// kubeletAnswers reports whether the kubelet of a node answers, so that a program can be run there.
// It may say that it is not ready.
func kubeletAnswers(n object) bool {
	return slices.Contains([]string{"True", "False"}, conditionOf(n, "Ready").Text("status"))
}

// notReady returns the finding about a node whose kubelet does not answer, or says that it is not
// ready.
func notReady(n object) cli.Finding {
	ready := conditionOf(n, "Ready")
	f := cli.Finding{Reason: "NodeNotReady", What: fmt.Sprintf("its kubelet is not ready since %s: %s",
		ready.Text("lastTransitionTime"), ready.Text("message")),
		Why:    "its addresses stay kept for their pods, which cannot start there before it is ready",
		Decide: "what repairs the cause that the kubelet names; do not delete the Node object, the node is not away"}
	if !kubeletAnswers(n) {
		f.Decide = "whether the node comes back. If not, delete the Node object: then its reservations end, and the " +
			"pods start elsewhere with other addresses"
	}
	return f
}

// checkPool finds the networks in the NodeAddressPool of a node that are not active, without those
// that the node itself has reported (seen).
func (d *clusterDoctor) checkPool(p object, seen bool) {
	d.named = d.named || conditionOf(p, "RetentionActive").Text("reason") == cniconf.Named
	for _, n := range p.List("status", "networks") {
		d.networks++
		if n.Text("active") != "False" || seen && n.Text("reason") != "PodWithoutLease" {
			continue
		}
		f := cli.Finding{Reason: n.Text("reason"), Subject: "node " + nameOf(p) + ": network " + n.Text("name"),
			What: n.Text("message"), Why: cli.NotKept,
			Decide: "leasectl doctor says more on the node, as does kubectl leasehold doctor without --nodes=false"}
		if f.Reason == "PodWithoutLease" {
			f.Decide = "which directories the runtime uses; the flags are in the DaemonSet " + cli.AgentName
		}
		d.Find(f)
	}
}

// checkFlannel finds a ConfigMap of flannel that does not name leasehold, where configurations on
// nodes do: flannel writes the ConfigMap's configuration to a node when its pod starts there.
func (d *clusterDoctor) checkFlannel(ctx context.Context) {
	if !d.named {
		return
	}
	change, err := d.changeFlannel(ctx, cniconf.WithLeasehold)
	if errors.Is(err, cniconf.ErrNothingToChange) {
		return
	}
	d.Fail(err)
	if err != nil || change.config == nil || change.before == change.after {
		return
	}
	d.Find(cli.Finding{Reason: "FlannelConfigMap",
		Subject: "ConfigMap " + namespaceOf(change.config) + "/" + flannelConfig,
		What: "it does not name leasehold, and the configuration on nodes does: flannel's manifest was applied " +
			"again",
		Why: "on each node, addresses are kept until flannel's pod starts there again, and then no longer",
		Decide: "whether leasehold is still wanted. If so, kubectl leasehold install names it again, and restarts " +
			"flannel's pods"})
}
