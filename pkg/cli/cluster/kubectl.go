package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
)

// kubectl runs the program kubectl, with the user's configuration and credentials, and with the
// given arguments and standard input. It returns the standard output, also if kubectl fails. The
// error then contains the standard error. leasectl is not linked with a Kubernetes client
// (docs/decisions.md, "The kubectl plugin calls kubectl").
func (c *cluster) kubectl(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	args = append(c.flags(), args...)
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w; install kubectl", err)
	}
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), err
}

// flags returns the flags with which kubectl uses the cluster that the user has chosen.
func (c *cluster) flags() (flags []string) {
	if c.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+c.kubeconfig)
	}
	if c.context != "" {
		flags = append(flags, "--context="+c.context)
	}
	return flags
}

// withFlags returns a text with the flags in its commands. Without them they would be run in
// another cluster.
func (c *cluster) withFlags(text string) string {
	kubectl := cli.ShellCommand(append([]string{"kubectl"}, c.flags()...)...)
	return strings.ReplaceAll(text, "kubectl -n ", kubectl+" -n ")
}

// object is a Kubernetes object as decoded JSON. It keeps fields that leasectl does not know.
type object map[string]any

// get returns the object or list that `kubectl get` prints for the arguments, nil if there is none.
func (c *cluster) get(ctx context.Context, args ...string) (object, error) {
	out, err := c.kubectl(ctx, nil, append([]string{"get", "--ignore-not-found", "-o", "json"}, args...)...)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, err
	}
	var o object
	return o, json.Unmarshal(out, &o)
}

// items returns the objects in the list that get returns for the arguments.
func (c *cluster) items(ctx context.Context, args ...string) ([]object, error) {
	list, err := c.get(ctx, args...)
	return list.List("items"), err
}

// own returns an object of leasehold's namespace as get does.
func (c *cluster) own(ctx context.Context, args ...string) (object, error) {
	return c.get(ctx, append([]string{"-n", cli.Namespace}, args...)...)
}

// delete deletes the objects that the arguments name, or as many of them as there are.
func (c *cluster) delete(ctx context.Context, args ...string) error {
	_, err := c.kubectl(ctx, nil, append(append([]string{"delete"}, args...), "--ignore-not-found")...)
	return err
}

// patch changes fields of an object, as the flag --type says.
func (c *cluster) patch(ctx context.Context, namespace, kind, name, how string, fields object) error {
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	_, err = c.kubectl(ctx, nil, "patch", "-n", namespace, kind, name, "--type="+how, "-p", string(text))
	return err
}

// podsOf returns the pods of the agents' DaemonSet or of the manager's Deployment.
func (c *cluster) podsOf(ctx context.Context, name string) ([]object, error) {
	return c.items(ctx, "-n", cli.Namespace, "pod", "-l", "app.kubernetes.io/name="+name)
}

// agentPods returns the pods of the agents' DaemonSet, without those in whose place it creates
// others: pods that are being deleted or have ended. A node has at most one of them.
func (c *cluster) agentPods(ctx context.Context) ([]object, error) {
	pods, err := c.podsOf(ctx, cli.AgentName)
	return slices.DeleteFunc(pods, func(p object) bool {
		return p.Text("metadata", "deletionTimestamp") != "" ||
			slices.Contains([]string{"Failed", "Succeeded"}, p.Text("status", "phase"))
	}), err
}

// agents returns the pods of the agents that run: on the node in the flag --node, or on all nodes.
func (c *cluster) agents(ctx context.Context) ([]object, error) {
	pods, err := c.agentPods(ctx)
	return slices.DeleteFunc(pods, func(p object) bool {
		return p.Text("status", "phase") != "Running" || c.node != "" && nodeOf(p) != c.node
	}), err
}

// someAgents is agents, and returns an error if there is none.
func (c *cluster) someAgents(ctx context.Context) ([]object, error) {
	pods, err := c.agents(ctx)
	if err == nil && len(pods) == 0 {
		err = fmt.Errorf("there is no running pod of %s in namespace %s", cli.AgentName, cli.Namespace)
	}
	return pods, err
}

// nodeOf returns the name of the node of a pod or a reservation.
func nodeOf(o object) string { return o.Text("spec", "nodeName") }

func nameOf(o object) string { return o.Text("metadata", "name") }

func namespaceOf(o object) string { return o.Text("metadata", "namespace") }

// onNode returns the arguments of kubectl that run leasectl in the pod of an agent. There leasectl
// sees the same as directly on the node.
func (c *cluster) onNode(pod object, args ...string) []string {
	return append([]string{"-n", cli.Namespace, "exec", nameOf(pod), "-c", "agent", "--", "/leasectl",
		"--host-root=/proc/1/root"}, args...)
}

// nodeTimeout is how long leasectl may take on a node, and a read for a bundle. The API server does
// not end a program that does not start because the node's runtime hangs.
var nodeTimeout = time.Minute

// readNode decodes the JSON that leasectl prints in the pod of an agent. An exit status beside the
// JSON, which says that there are findings, is no error.
func (c *cluster) readNode(ctx context.Context, pod object, into any, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	out, err := c.kubectl(ctx, nil, c.onNode(pod, append(args, "-o", "json")...)...)
	if e := json.Unmarshal(out, into); e == nil || err == nil {
		return e
	}
	return err
}

// rollout waits until all pods of a DaemonSet are up to date and available. It returns an error if
// that takes longer than --timeout.
func (c *cluster) rollout(ctx context.Context, namespace, name string) error {
	_, err := c.kubectl(ctx, nil, "rollout", "status", "-n", namespace, "daemonset/"+name, c.limit())
	return err
}

// Field returns the value at a path of keys in an object, nil if there is none.
func (o object) Field(keys ...string) any {
	var value any = map[string]any(o)
	for _, key := range keys {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

// In returns the object at a path of keys, nil if there is none.
func (o object) In(keys ...string) object {
	m, _ := o.Field(keys...).(map[string]any)
	return m
}

// Text returns the string at a path of keys, "" if there is none.
func (o object) Text(keys ...string) string {
	s, _ := o.Field(keys...).(string)
	return s
}

// Number returns the number at a path of keys, 0 if there is none.
func (o object) Number(keys ...string) int {
	n, _ := o.Field(keys...).(float64)
	return int(n)
}

// List returns the objects in the list at a path of keys. Elements that are not objects are
// omitted.
func (o object) List(keys ...string) (all []object) {
	items, _ := o.Field(keys...).([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// find returns the first element of a list with a text at a path of keys, nil if there is none.
func find(list []object, text string, keys ...string) object {
	for _, o := range list {
		if o.Text(keys...) == text {
			return o
		}
	}
	return nil
}

// arguments returns those arguments of a container in a list that begin with a prefix.
func arguments(containers []object, name, prefix string) (all []string) {
	args, _ := find(containers, name, "name").Field("args").([]any)
	for _, a := range args {
		if s, _ := a.(string); strings.HasPrefix(s, prefix) {
			all = append(all, s)
		}
	}
	return all
}
