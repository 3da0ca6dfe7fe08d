package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// dryRun is the flag with which the installer only says whether it can remove leasehold.
const dryRun = "--dry-run"

// hasBegun reports whether a former call has begun to remove the plugin from the nodes.
func (k *cluster) hasBegun(ctx context.Context) (bool, error) {
	daemon, err := k.Own(ctx, "daemonset", uninstallName)
	if err != nil || daemon == nil {
		return false, err
	}
	return !isDryRun(daemon.List("spec", "template", "spec", "initContainers")), nil
}

// isDryRun reports whether the init containers of a pod of the uninstaller only ask.
func isDryRun(containers []kubectl.Object) bool {
	return len(kubectl.Arguments(kubectl.Named(containers, uninstallName), dryRun)) > 0
}

// askNodes asks each node whether leasehold can be removed from it, and prints what each has to
// say. It returns an error if one cannot, or does not answer in time.
func (k *cluster) askNodes(ctx context.Context, agent kubectl.Object) error {
	if err := k.runOnNodes(ctx, agent, dryRun); err != nil {
		return err
	}
	if err := k.waitForNodes(ctx, true); err != nil {
		// The context may be done.
		e := k.Delete(context.WithoutCancel(ctx), "-n", k.Namespace, "daemonset", uninstallName, "--wait=false")
		err = fmt.Errorf("nothing was removed: %w\nremove the causes, then run this command again", err)
		return errors.Join(err, e)
	}
	k.step("leasehold can be removed from all nodes")
	return nil
}

// cleanNodes removes the plugin from each node, and prints what is left there. If agent is nil, a
// former call has begun that, and cleanNodes continues it.
func (k *cluster) cleanNodes(ctx context.Context, agent kubectl.Object) (err error) {
	if agent != nil {
		err = k.runOnNodes(ctx, agent)
	} else {
		// The kubelet waits for up to five minutes before it repeats a container that has failed.
		_, err = k.Run(ctx, nil, "rollout", "restart", "-n", k.Namespace, "daemonset/"+uninstallName)
	}
	if err != nil {
		return err
	}
	if err := k.waitForNodes(ctx, false); err != nil {
		return fmt.Errorf("leasehold is not removed from all nodes: %w\npods start and end on them as before; "+
			"remove the causes, then run this command again, which continues here", err)
	}
	return nil
}

// runOnNodes applies the DaemonSet whose pods remove the plugin from the nodes. more are further
// arguments of the installer.
func (k *cluster) runOnNodes(ctx context.Context, agent kubectl.Object, more ...string) error {
	daemon, err := uninstaller(agent, more...)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(daemon)
	if err != nil {
		return err
	}
	_, err = k.Run(ctx, manifest, "apply", "-f", "-")
	return err
}

// nodeAnswer is what a node has answered to the uninstaller, or why it has not yet.
type nodeAnswer struct {
	node string // "" for nodes that are not known
	// done reports whether the installer has succeeded. failed reports whether it has failed, or
	// cannot run; the kubelet tries it again.
	done, failed bool
	text         string
}

func (n nodeAnswer) String() string {
	text := strings.ReplaceAll(strings.TrimSpace(n.text), "\n", "; ")
	if n.node == "" {
		return text
	}
	return n.node + ": " + text
}

const (
	// quiet is how long waitForNodes waits before it prints what it waits for. Pods usually start
	// in that time.
	quiet = 5 * time.Second
	// pollNodes is how often waitForNodes reads the pods.
	pollNodes = 2 * time.Second
)

// waitForNodes waits until the installer has succeeded on all nodes, and prints what the nodes say
// and what it waits for. It returns an error with the nodes that are left after the time limit; if
// the nodes are only asked, as soon as each has answered.
func (k *cluster) waitForNodes(ctx context.Context, asking bool) error {
	printed := map[string]bool{}
	say := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !printed[text] {
			printed[text] = true
			k.step("  %s", text)
		}
	}
	for began := time.Now(); ; {
		waited := time.Since(began)
		answers, err := k.nodeAnswers(ctx, asking, waited > quiet)
		if err != nil {
			answers = []nodeAnswer{{text: err.Error()}}
		}
		var left []string
		isFinal := asking
		for _, n := range answers {
			switch {
			case !n.done:
				left = append(left, n.String())
				isFinal = isFinal && n.failed
				if waited > quiet {
					say("waiting for %s", n)
				}
			case n.text != "":
				say("%s", n)
			}
		}
		switch {
		case len(left) == 0:
			return nil
		case isFinal:
			return fmt.Errorf("leasehold cannot be removed from these nodes:\n  %s", strings.Join(left, "\n  "))
		case waited > k.Timeout:
			return fmt.Errorf("these nodes have not ended after %s:\n  %s", k.Timeout, strings.Join(left, "\n  "))
		}
		if !notify.Wait(ctx, nil, pollNodes) {
			return ctx.Err()
		}
	}
}

// nodeAnswers returns the answer of each node, to the installer that only asks or to the one that
// removes. If why is set, it reads the nodes, too, and says of those that do not answer why.
func (k *cluster) nodeAnswers(ctx context.Context, asking, why bool) (all []nodeAnswer, err error) {
	daemon, err := k.Own(ctx, "daemonset", uninstallName)
	if err != nil {
		return nil, err
	}
	if daemon.Number("status", "observedGeneration") < daemon.Number("metadata", "generation") {
		return nil, fmt.Errorf("the controller manager has not seen the DaemonSet %s", uninstallName)
	}
	pods, err := k.Pods(ctx, uninstallName)
	if err != nil {
		return nil, err
	}
	ready := map[string]kubectl.Object{}
	if why {
		if ready, err = k.readyConditions(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range pods {
		if isOf(p, daemon) && isDryRun(p.List("spec", "initContainers")) == asking {
			all = append(all, answerOf(p, ready[p.Text("spec", "nodeName")]))
		}
	}
	if missing := daemon.Number("status", "desiredNumberScheduled") - len(all); missing > 0 {
		all = append(all, nodeAnswer{text: fmt.Sprintf("nodes without a pod of the DaemonSet %s: %d", uninstallName,
			missing)})
	}
	return all, nil
}

// isOf reports whether a pod is one of a DaemonSet, and is not being deleted. The pods of a former
// DaemonSet of the same name have other owners.
func isOf(pod, daemon kubectl.Object) bool {
	uid := daemon.Text("metadata", "uid")
	return pod.Text("metadata", "deletionTimestamp") == "" &&
		slices.ContainsFunc(pod.List("metadata", "ownerReferences"), func(o kubectl.Object) bool {
			return o.Text("uid") == uid
		})
}

// readyConditions returns the condition Ready of each node.
func (k *cluster) readyConditions(ctx context.Context) (map[string]kubectl.Object, error) {
	nodes, err := k.Get(ctx, "nodes")
	all := map[string]kubectl.Object{}
	for _, n := range nodes.List("items") {
		for _, c := range n.List("status", "conditions") {
			if c.Text("type") == "Ready" {
				all[n.Text("metadata", "name")] = c
			}
		}
	}
	return all, err
}

// answerOf returns the answer of the node of a pod of the uninstaller. ready is the condition Ready
// of the node, nil if it is not known.
func answerOf(pod, ready kubectl.Object) nodeAnswer {
	n := nodeAnswer{node: pod.Text("spec", "nodeName"), text: "its pod has not started"}
	c := kubectl.Named(pod.List("status", "initContainerStatuses"), uninstallName)
	for _, state := range []string{"state", "lastState"} {
		ended, _ := c.Field(state, "terminated").(map[string]any)
		if ended == nil {
			continue
		}
		code, _ := ended["exitCode"].(float64)
		n.text, _ = ended["message"].(string)
		n.done, n.failed = code == 0, code != 0
		if n.text == "" && n.failed {
			n.text = fmt.Sprintf("its pod %s has failed with exit code %.0f", pod.Text("metadata", "name"), code)
		}
		return n
	}
	switch waiting := c.Text("state", "waiting", "reason"); {
	case ready.Text("status") == "Unknown":
		n.failed = true
		n.text = fmt.Sprintf("the node does not answer (%s); start it, or, if it does not come back, delete it with "+
			"kubectl delete node %s", ready.Text("message"), n.node)
	case waiting != "" && waiting != "PodInitializing":
		n.text = fmt.Sprintf("its pod has not started: %s: %s", waiting, c.Text("state", "waiting", "message"))
	case ready.Text("status") == "False":
		n.text = "the node is not ready: " + ready.Text("message")
	case c.Field("state", "running") != nil:
		n.text = "the installer runs"
	}
	return n
}

// uninstaller returns the DaemonSet whose pods remove the plugin from the nodes. Its pods run on
// the same nodes, with the same image and privileges, as the pods of the given agent DaemonSet.
// more are further arguments of the installer.
func uninstaller(agent kubectl.Object, more ...string) (kubectl.Object, error) {
	spec := kubectl.Object{}
	if err := remarshal(agent.Field("spec", "template", "spec"), &spec); err != nil {
		return nil, err
	}
	install := kubectl.Named(spec.List("initContainers"), installerName)
	container := kubectl.Named(spec.List("containers"), "agent")
	if install == nil || container == nil {
		return nil, fmt.Errorf("the DaemonSet %s has no containers %s and agent as leasehold's manifests have",
			agentName, installerName)
	}
	security := kubectl.Object{}
	if err := remarshal(container.Field("securityContext"), &security); err != nil {
		return nil, err
	}
	if capabilities, ok := security["capabilities"].(map[string]any); ok {
		add, _ := capabilities["add"].([]any)
		capabilities["add"] = append(add, "DAC_OVERRIDE", "CHOWN") // for configurations of other users
	}
	common := func(name string, args ...string) kubectl.Object {
		return kubectl.Object{"name": name, "image": install["image"], "imagePullPolicy": install["imagePullPolicy"],
			"command": install["command"], "args": args}
	}
	remove := common(uninstallName, append(uninstallArgs(install, container), more...)...)
	remove["securityContext"] = security
	remove["terminationMessagePolicy"] = "FallbackToLogsOnError"
	spec["initContainers"] = []kubectl.Object{remove}
	spec["containers"] = []kubectl.Object{common("idle", "idle")}
	// The agent needs the service account for the API, which the uninstaller does not use.
	spec["automountServiceAccountToken"] = false
	// If a namespace is deleted while it has pods, the namespace controller checks it again only
	// after half of the pods' grace period.
	spec["terminationGracePeriodSeconds"] = 1
	labels := kubectl.Object{"app.kubernetes.io/name": uninstallName, "app.kubernetes.io/part-of": "leasehold"}
	return kubectl.Object{
		"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": kubectl.Object{"name": uninstallName, "namespace": agent.Text("metadata", "namespace"),
			"labels": labels},
		"spec": kubectl.Object{
			"selector":       kubectl.Object{"matchLabels": kubectl.Object{"app.kubernetes.io/name": uninstallName}},
			"updateStrategy": kubectl.Object{"rollingUpdate": kubectl.Object{"maxUnavailable": "100%"}},
			"template":       kubectl.Object{"metadata": kubectl.Object{"labels": labels}, "spec": spec},
		},
	}, nil
}

// uninstallArgs returns the arguments of leasectl that remove what these two containers have
// installed and used.
func uninstallArgs(install, agent kubectl.Object) []string {
	args := append([]string{"uninstall"}, kubectl.Arguments(install, "--host-root=")...)
	args = append(args, kubectl.Arguments(install, "--cni-bin-dir=")...)
	// Without the flag agent and leasectl have the same default, unless the runtime's configuration
	// names another directory.
	return append(args, kubectl.Arguments(agent, "--cni-conf-dir=")...)
}

// remarshal copies a value by encoding it to JSON and decoding it.
func remarshal(from any, to any) error {
	b, err := json.Marshal(from)
	return errors.Join(err, json.Unmarshal(b, to))
}
