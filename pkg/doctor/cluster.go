package doctor

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
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
	{"Kruise", checkKruise},
	{"webhook", checkWebhook},
	{"manager", checkManager},
	{"agents", checkAgents},
	{"nodes", checkNodes},
	{"annotations", checkWorkloads},
	{"limits", checkLimits},
	{"clocks", checkClocks},
}

// Examine makes all checks of the cluster.
func (c *Cluster) Examine(ctx context.Context) Report { return examine(ctx, c, clusterChecks) }

// The names of leasehold's workloads, and the beginning of the name of the CRD of
// PersistentPodStates (the rest is Kruise's API group).
const (
	agentName   = "leasehold-agent"
	managerName = "leasehold-manager"
	crdOfStates = "persistentpodstates."
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
	{"mutatingwebhookconfiguration", []string{managerName}, notCalled},
	{"deployment", []string{managerName}, "pods are not brought back to their nodes"},
	{"daemonset", []string{agentName}, "windows of annotations do not arrive, and no reservation is published"},
}

const (
	unconfined = "invalid annotations are accepted, or leasehold's accounts may do more than they need: whoever has " +
		"an agent's token may write the reservations of other nodes"
	notCalled = "the API server does not reach the manager: pods are not brought back to their nodes"
)

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

func checkKruise(ctx context.Context, c *Cluster) (found []Finding, err error) {
	all, err := c.items(ctx, "crd")
	for _, o := range all {
		crd := o.Text("metadata", "name")
		service, _ := o.Field("spec", "conversion", "webhook", "clientConfig", "service").(map[string]any)
		if !strings.HasPrefix(crd, crdOfStates) || service == nil {
			continue
		}
		namespace, name := kubectl.Object(service).Text("namespace"), kubectl.Object(service).Text("name")
		there, e := c.Kubectl.Get(ctx, "-n", namespace, "service", name)
		if e != nil || there != nil {
			err = errors.Join(err, e)
			continue
		}
		found = append(found, Finding{Reason: "KruiseCRDLeft", Subject: crd,
			What: fmt.Sprintf("it was left by Kruise: the service %s/%s, which converts its versions, does not exist",
				namespace, name),
			Why: "PersistentPodStates of one of its versions can be neither read nor written",
			Decide: "whether Kruise will be installed again. If not, end the conversion: " +
				command("kubectl", "patch", "crd", crd, "--type=merge", "-p",
					`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)})
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

func checkWebhook(ctx context.Context, c *Cluster) (found []Finding, err error) {
	hook, err := c.Kubectl.Get(ctx, "mutatingwebhookconfiguration", managerName)
	if err != nil {
		return nil, err
	}
	if hook == nil {
		return nil, nil
	}
	restart := []string{restartManager(c.Kubectl.Namespace)}
	data := map[string]*x509.Certificate{}
	var unread error
	for _, key := range []string{"ca.crt", "tls.crt"} {
		// Only the certificates are read, not the private keys.
		out, err := c.Kubectl.Run(ctx, nil, "-n", c.Kubectl.Namespace, "get", "secret", managerName, "-o",
			"jsonpath={.data."+strings.ReplaceAll(key, ".", `\.`)+"}")
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		data[key] = certificate(string(out))
	}
	for key, cert := range data {
		if cert == nil || c.Now().After(cert.NotAfter) || c.Now().Before(cert.NotBefore) {
			what := "it has no certificate " + key
			if cert != nil {
				what = fmt.Sprintf("%s is valid from %s to %s", key, cert.NotBefore.Format(time.RFC3339),
					cert.NotAfter.Format(time.RFC3339))
			}
			return []Finding{{Reason: "CertificateExpired", Subject: "Secret " + managerName, What: what,
				Why: notCalled, Repair: restart}}, nil
		}
	}
	for _, w := range hook.List("webhooks") {
		ca := certificate(w.Text("clientConfig", "caBundle"))
		own := data["ca.crt"]
		if ca != nil && !c.Now().After(ca.NotAfter) && (own == nil || ca.Equal(own)) {
			continue
		}
		found = append(found, Finding{Reason: "WebhookCA", Subject: w.Text("name"), Why: notCalled,
			What:   "its caBundle is missing, over or not the CA in the Secret " + managerName,
			Repair: restart})
	}
	return found, unread
}

// certificate decodes a certificate from a base64 field of an object. It returns nil if there is
// none or it is invalid.
func certificate(text string) *x509.Certificate {
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(text)) // what is not base64 is not PEM either
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil
	}
	cert, _ := x509.ParseCertificate(block.Bytes) // nil if it is invalid
	return cert
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
