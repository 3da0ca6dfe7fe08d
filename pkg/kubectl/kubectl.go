// Package kubectl runs the program kubectl, with the configuration and credentials of the user.
// leasectl is not linked with a Kubernetes client (docs/decisions.md, "The kubectl plugin calls
// kubectl").
package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Client runs kubectl for one cluster.
type Client struct {
	Kubeconfig string // path; "" for the default of kubectl
	Context    string
	Namespace  string        // the namespace of leasehold; Run does not add it
	Timeout    time.Duration // how long Rollout waits
}

// AddFlags defines the flags for the cluster.
func (k *Client) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&k.Kubeconfig, "kubeconfig", "", "`path` of the kubeconfig file; if empty, kubectl's own")
	f.StringVar(&k.Context, "context", "", "`name` of the kubeconfig's context")
	f.StringVar(&k.Namespace, "system-namespace", "leasehold-system", "namespace of leasehold")
}

// Run calls kubectl with the given arguments and standard input, and returns its standard output,
// also if kubectl fails. The error then contains the standard error.
func (k *Client) Run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	for flag, value := range map[string]string{"--kubeconfig=": k.Kubeconfig, "--context=": k.Context} {
		if value != "" {
			args = append([]string{flag + value}, args...)
		}
	}
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

// Object is a Kubernetes object as decoded JSON. It keeps fields that leasectl does not know.
type Object map[string]any

// Get returns the object or list that `kubectl get` prints for the arguments, nil if there is none.
func (k *Client) Get(ctx context.Context, args ...string) (Object, error) {
	out, err := k.Run(ctx, nil, append([]string{"get", "--ignore-not-found", "-o", "json"}, args...)...)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, err
	}
	var o Object
	return o, json.Unmarshal(out, &o)
}

// Own returns an object of leasehold's namespace as Get does.
func (k *Client) Own(ctx context.Context, args ...string) (Object, error) {
	return k.Get(ctx, append([]string{"-n", k.Namespace}, args...)...)
}

// Delete deletes the objects that the arguments name, or as many of them as there are.
func (k *Client) Delete(ctx context.Context, args ...string) error {
	_, err := k.Run(ctx, nil, append(append([]string{"delete"}, args...), "--ignore-not-found")...)
	return err
}

// Pods returns the pods of leasehold's namespace with a name in their label.
func (k *Client) Pods(ctx context.Context, name string) ([]Object, error) {
	list, err := k.Own(ctx, "pod", "-l", "app.kubernetes.io/name="+name)
	return list.List("items"), err
}

// Agent is the running pod of an agent, and its node.
type Agent struct{ Pod, Node string }

// Agents returns the agents that run: that of a node, or of all nodes if node is "".
func (k *Client) Agents(ctx context.Context, node string) (out []Agent, err error) {
	pods, err := k.Pods(ctx, "leasehold-agent")
	for _, p := range pods {
		a := Agent{p.Text("metadata", "name"), p.Text("spec", "nodeName")}
		if p.Text("status", "phase") == "Running" && (node == "" || a.Node == node) {
			out = append(out, a)
		}
	}
	return out, err
}

// OnNode returns the arguments of kubectl that run leasectl in the pod of an agent. There leasectl
// sees the same as directly on the node.
func (k *Client) OnNode(pod string, args ...string) []string {
	return append([]string{"-n", k.Namespace, "exec", pod, "-c", "agent", "--", "/leasectl",
		"--host-root=/proc/1/root"}, args...)
}

// ReadNode decodes the JSON that leasectl prints in the pod of an agent. An exit status beside the
// JSON, which says that there are findings, is no error.
func (k *Client) ReadNode(ctx context.Context, pod string, into any, args ...string) error {
	out, err := k.Run(ctx, nil, k.OnNode(pod, append(args, "-o", "json")...)...)
	if e := json.Unmarshal(out, into); e == nil || err == nil {
		return e
	}
	return err
}

// Rollout waits until all pods of a DaemonSet are up to date and available. It returns an error if
// that takes longer than Timeout.
func (k *Client) Rollout(ctx context.Context, namespace, name string) error {
	_, err := k.Run(ctx, nil, "rollout", "status", "-n", namespace, "daemonset/"+name, "--timeout="+k.Timeout.String())
	return err
}

// Field returns the value at a path of keys in an object, nil if there is none.
func (o Object) Field(keys ...string) any {
	var value any = map[string]any(o)
	for _, key := range keys {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

// In returns the object at a path of keys, nil if there is none.
func (o Object) In(keys ...string) Object {
	m, _ := o.Field(keys...).(map[string]any)
	return m
}

// Text returns the string at a path of keys, "" if there is none.
func (o Object) Text(keys ...string) string {
	s, _ := o.Field(keys...).(string)
	return s
}

// Number returns the number at a path of keys, 0 if there is none.
func (o Object) Number(keys ...string) int {
	n, _ := o.Field(keys...).(float64)
	return int(n)
}

// List returns the objects in the list at a path of keys. Elements that are not objects are
// omitted.
func (o Object) List(keys ...string) (all []Object) {
	items, _ := o.Field(keys...).([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// Named returns the element of a list whose field name has the given value, nil if there is none.
func Named(list []Object, name string) Object {
	for _, o := range list {
		if o.Text("name") == name {
			return o
		}
	}
	return nil
}

// Arguments returns those arguments of a container that begin with a prefix.
func Arguments(container Object, prefix string) (all []string) {
	args, _ := container.Field("args").([]any)
	for _, a := range args {
		if s, _ := a.(string); strings.HasPrefix(s, prefix) {
			all = append(all, s)
		}
	}
	return all
}
