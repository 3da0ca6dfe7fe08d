// Package kubectl calls kubectl, with the user's configuration and credentials. leasectl links no
// client of its own (docs/decisions.md, "leasectl calls kubectl").
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

// Client calls kubectl.
type Client struct {
	Program    string
	Kubeconfig string // if empty, kubectl's own
	Context    string
	Namespace  string        // of leasehold
	Timeout    time.Duration // how long Rollout waits
}

// AddFlags defines the flags for which kubectl and which cluster to use.
func (k *Client) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&k.Program, "kubectl", "kubectl", "`path` of kubectl")
	f.StringVar(&k.Kubeconfig, "kubeconfig", "", "`path` of the kubeconfig file; if empty, kubectl's own")
	f.StringVar(&k.Context, "context", "", "`name` of the kubeconfig's context")
}

// Run calls kubectl with arguments and standard input, and returns its standard output.
func (k *Client) Run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	for flag, value := range map[string]string{"--kubeconfig=": k.Kubeconfig, "--context=": k.Context} {
		if value != "" {
			args = append([]string{flag + value}, args...)
		}
	}
	cmd := exec.CommandContext(ctx, k.Program, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w; install kubectl, or name it with --kubectl", err)
	}
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), err
}

// Object is a Kubernetes object. Fields that leasectl does not know stay as they are.
type Object map[string]any

// Get returns an object, nil if there is none.
func (k *Client) Get(ctx context.Context, args ...string) (Object, error) {
	out, err := k.Run(ctx, nil, append([]string{"get", "--ignore-not-found", "-o", "json"}, args...)...)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, err
	}
	var o Object
	return o, json.Unmarshal(out, &o)
}

// Rollout waits until all pods of a DaemonSet are up to date and available.
func (k *Client) Rollout(ctx context.Context, namespace, name string) error {
	_, err := k.Run(ctx, nil, "rollout", "status", "-n", namespace, "daemonset/"+name, "--timeout="+k.Timeout.String())
	return err
}

// Field returns what is in an object under a path of keys, nil if there is nothing.
func (o Object) Field(keys ...string) any {
	var value any = map[string]any(o)
	for _, key := range keys {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

// Text is Field for a string, "" if there is none.
func (o Object) Text(keys ...string) string {
	s, _ := o.Field(keys...).(string)
	return s
}

// List is Field for a list of objects.
func (o Object) List(keys ...string) (all []Object) {
	items, _ := o.Field(keys...).([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// Named returns the element of a list that has a name, nil if none has it.
func Named(list []Object, name string) Object {
	for _, o := range list {
		if o.Text("name") == name {
			return o
		}
	}
	return nil
}

// Arguments returns the arguments of a container that begin with a prefix.
func Arguments(container Object, prefix string) (all []string) {
	args, _ := container.Field("args").([]any)
	for _, a := range args {
		if s, _ := a.(string); strings.HasPrefix(s, prefix) {
			all = append(all, s)
		}
	}
	return all
}
