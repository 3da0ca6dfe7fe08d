package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
)

// isUninstaller reports whether a pod, or the template of one, is that of an agent whose DaemonSet
// cleanNodes has changed.
func isUninstaller(pod kubectl.Object) bool {
	install := kubectl.Named(pod.List("spec", "initContainers"), installerName)
	return len(kubectl.Arguments(install, "uninstall")) > 0
}

// askNodes asks each node whether leasehold can be removed from it, in the pod of its agent. It
// returns an error if one cannot, or does not answer in time.
func (k *cluster) askNodes(ctx context.Context, agent kubectl.Object) error {
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	pods, err := k.Agents(ctx, "")
	if missing := agent.Number("status", "desiredNumberScheduled") - len(pods); err == nil && missing > 0 {
		err = fmt.Errorf("nodes on which no agent runs: %d", missing)
	}
	for i, p := range pods {
		k.say("asking node %s (%d of %d)", p.Node, i+1, len(pods))
		args := append(uninstallArgs(agent), "--dry-run")
		if _, e := k.Run(ctx, nil, k.OnNode(p.Pod, args...)...); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.Node, e))
		}
	}
	if err != nil {
		return fmt.Errorf("nothing was removed, because leasehold cannot be removed from all nodes:\n%w\n"+
			"remove the causes, then run this command again", err)
	}
	return nil
}

// cleanNodes changes the DaemonSet of the agents: instead of an agent, each node gets a pod that
// removes the plugin. The kubelet repeats that until it succeeds, and the pod is ready then. If a
// former call has changed the DaemonSet, cleanNodes continues it. It prints what the nodes say, and
// returns an error if one is left after the time limit.
func (k *cluster) cleanNodes(ctx context.Context, agent kubectl.Object) (err error) {
	if isUninstaller(agent.In("spec", "template")) {
		// The kubelet waits for up to five minutes before it repeats a container that has failed.
		_, err = k.Run(ctx, nil, "rollout", "restart", "-n", k.Namespace, "daemonset/"+agentName)
	} else {
		err = k.changeAgents(ctx, agent)
	}
	if err != nil {
		return err
	}
	err = k.Rollout(ctx, k.Namespace, agentName)
	pods, e := k.Pods(ctx, agentName)
	for _, p := range pods {
		if text := answerOf(p); text != "" {
			k.step("  %s: %s", p.Text("spec", "nodeName"), strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "))
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
func (k *cluster) changeAgents(ctx context.Context, agent kubectl.Object) error {
	main := kubectl.Named(agent.List("spec", "template", "spec", "containers"), "agent")
	capabilities, _ := main.Field("securityContext", "capabilities", "add").([]any)
	patch, err := json.Marshal(kubectl.Object{"spec": kubectl.Object{
		"updateStrategy": kubectl.Object{"type": "RollingUpdate",
			"rollingUpdate": kubectl.Object{"maxUnavailable": "100%"}},
		"template": kubectl.Object{"spec": kubectl.Object{
			// If a namespace is deleted while it has pods, the namespace controller checks it again
			// only after half of the pods' grace period.
			"terminationGracePeriodSeconds": 1,
			"initContainers": []kubectl.Object{{"name": installerName, "restartPolicy": nil,
				"args":                     append([]string{"--host-root=/proc/1/root"}, uninstallArgs(agent)...),
				"terminationMessagePolicy": "FallbackToLogsOnError",
				"securityContext": kubectl.Object{"capabilities": kubectl.Object{
					"add": append(capabilities, "DAC_OVERRIDE", "CHOWN")}}}}, // for files of other users
			"containers": []kubectl.Object{{"name": "agent", "command": []string{"/leasectl"},
				"args": []string{"idle"}, "readinessProbe": nil, "livenessProbe": nil}},
		}}}})
	if err != nil {
		return err
	}
	_, err = k.Run(ctx, nil, "patch", "-n", k.Namespace, "daemonset", agentName, "-p", string(patch))
	return err
}

// uninstallArgs returns the arguments of leasectl that remove what the pods of a DaemonSet have
// installed and used.
func uninstallArgs(agent kubectl.Object) []string {
	pod := agent.In("spec", "template", "spec")
	args := append([]string{"uninstall"},
		kubectl.Arguments(kubectl.Named(pod.List("initContainers"), installerName), "--cni-bin-dir=")...)
	// Without the flag agent and leasectl have the same default, unless the runtime's configuration
	// names another directory.
	return append(args, kubectl.Arguments(kubectl.Named(pod.List("containers"), "agent"), "--cni-conf-dir=")...)
}

// answerOf returns what the pod of a node says about the removal: what a person should know, or why
// it has not succeeded yet.
func answerOf(pod kubectl.Object) string {
	if !isUninstaller(pod) {
		return "the agent has not ended"
	}
	c := kubectl.Named(pod.List("status", "initContainerStatuses"), installerName)
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
