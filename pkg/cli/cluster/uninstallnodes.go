package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

// isUninstaller reports whether a pod, or the template of one, is that of an agent whose DaemonSet
// cleanNodes has changed.
func isUninstaller(pod object) bool {
	return len(arguments(pod.List("spec", "initContainers"), installerName, "uninstall")) > 0
}

// askNodes asks each node what its uninstallation does, in the pod of its agent, and prints it. It
// returns an error if one cannot be uninstalled, has no agent, or does not answer in time.
func (c *cluster) askNodes(ctx context.Context, agent object) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	pods, err := c.agents(ctx)
	if err == nil && len(pods) < agent.Number("status", "desiredNumberScheduled") {
		err = c.nameMissing(ctx, agent)
	}
	held := 0
	for i, p := range pods {
		c.Say("asking node %s (%d of %d)", nodeOf(p), i+1, len(pods))
		var plan install.Plan
		args := append(uninstallArgs(agent), "--dry-run")
		if e := c.readNode(ctx, p, &plan, args...); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", nodeOf(p), e))
			continue
		}
		held += plan.Held
		c.Step("%s:\n- %s", nodeOf(p), strings.Join(plan.Steps, "\n- "))
	}
	if err != nil {
		return fmt.Errorf("nothing was removed, because leasehold cannot be removed from all nodes:\n%w\n"+
			"remove the causes, then run this command again", err)
	}
	c.Step("held addresses that are lost on all nodes: %d", held)
	return nil
}

// nameMissing returns an error with the nodes that the DaemonSet selects and on which no agent
// runs.
func (c *cluster) nameMissing(ctx context.Context, agent object) (err error) {
	nodes, e1 := c.items(ctx, "node")
	pods, e2 := c.agentPods(ctx)
	err = errors.Join(e1, e2)
	for _, n := range nodes {
		if !isSelected(n, agent.In("spec", "template", "spec", "nodeSelector")) {
			continue
		}
		p := find(pods, nameOf(n), "spec", "nodeName")
		if phase := p.Text("status", "phase"); p == nil {
			err = errors.Join(err, fmt.Errorf("%s: no agent runs: it has no pod of the agent", nameOf(n)))
		} else if phase != "Running" {
			err = errors.Join(err, fmt.Errorf("%s: no agent runs: its pod of the agent is %s", nameOf(n), phase))
		}
	}
	return err
}

// isSelected reports whether a node has all labels of a nodeSelector.
func isSelected(node, selector object) bool {
	for label, value := range selector {
		if node.Text("metadata", "labels", label) != value {
			return false
		}
	}
	return true
}

// cleanNodes changes the DaemonSet of the agents: instead of an agent, each node gets a pod that
// removes the plugin. The kubelet repeats that until it succeeds, and the pod is ready then. If a
// former call has changed the DaemonSet, cleanNodes continues it. It prints what the nodes say, and
// returns an error if one is left after the time limit.
func (c *cluster) cleanNodes(ctx context.Context, agent object) (err error) {
	if isUninstaller(agent.In("spec", "template")) {
		// The kubelet waits for up to five minutes before it repeats a container that has failed.
		_, err = c.kubectl(ctx, nil, "rollout", "restart", "-n", cli.Namespace, "daemonset/"+cli.AgentName)
	} else {
		err = c.changeAgents(ctx, agent)
	}
	if err != nil {
		return err
	}
	err = c.rollout(ctx, cli.Namespace, cli.AgentName)
	pods, e := c.podsOf(ctx, cli.AgentName)
	for _, p := range pods {
		if text := answerOf(p); text != "" {
			c.Step("  %s: %s", nodeOf(p), strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "))
		}
	}
	if err = errors.Join(err, e); err != nil {
		return fmt.Errorf("leasehold is not removed from all nodes: %w\npods start and end on them as before; "+
			"remove the causes, then run this command again, which continues here", err)
	}
	return nil
}

// changeAgents has the init container of the agents' pods remove what it has installed, with the
// agent's capabilities, and an idle container in the place of the agent. Applying the manifests
// again undoes all that matters of it.
func (c *cluster) changeAgents(ctx context.Context, agent object) error {
	args := slices.Concat([]string{"--host-root=/proc/1/root"}, uninstallArgs(agent), []string{"--yes"})
	main := find(agent.List("spec", "template", "spec", "containers"), "agent", "name")
	capabilities, _ := main.Field("securityContext", "capabilities", "add").([]any)
	return c.patch(ctx, cli.Namespace, "daemonset", cli.AgentName, "strategic", object{"spec": object{
		"updateStrategy": object{"type": "RollingUpdate",
			"rollingUpdate": object{"maxUnavailable": "100%"}},
		"template": object{"spec": object{
			// If a namespace is deleted while it has pods, the namespace controller checks it again
			// only after half of the pods' grace period.
			"terminationGracePeriodSeconds": 1,
			"initContainers": []object{{"name": installerName, "restartPolicy": nil,
				"args":                     args,
				"terminationMessagePolicy": "FallbackToLogsOnError",
				"securityContext": object{"capabilities": object{
					"add": append(capabilities, "DAC_OVERRIDE", "CHOWN")}}}}, // for files of other users
			"containers": []object{{"name": "agent", "command": []string{"/leasectl"},
				"args": []string{"idle"}, "readinessProbe": nil, "livenessProbe": nil}},
		}}}})
}

// uninstallArgs returns the arguments of leasectl that remove what the pods of a DaemonSet have
// installed and used.
func uninstallArgs(agent object) []string {
	pod := agent.In("spec", "template", "spec")
	args := append([]string{"uninstall"},
		arguments(pod.List("initContainers"), installerName, "--cni-bin-dir=")...)
	// Without the flag agent and leasectl have the same default, unless the runtime's configuration
	// names another directory.
	return append(args, arguments(pod.List("containers"), "agent", "--cni-conf-dir=")...)
}

// answerOf returns what the pod of a node says about the removal: what a person should know, or why
// it has not succeeded yet.
func answerOf(pod object) string {
	if !isUninstaller(pod) {
		return "the agent has not ended"
	}
	c := find(pod.List("status", "initContainerStatuses"), installerName, "name")
	for _, state := range []string{"state", "lastState"} {
		if ended := c.In(state, "terminated"); ended != nil {
			return ended.Text("message")
		}
	}
	if c.Field("state", "running") != nil {
		return "it has not ended"
	}
	waiting := c.In("state", "waiting")
	return strings.TrimRight("its pod has not started: "+waiting.Text("reason")+": "+waiting.Text("message"), ": ")
}
