package cli

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

// kubectl calls kubectl, with the user's configuration and credentials. leasectl links no client of
// its own (docs/decisions.md, "leasectl calls kubectl").
type kubectl struct {
	program    string
	kubeconfig string
	context    string
	namespace  string // of leasehold
	timeout    time.Duration
}

func (k *kubectl) addFlags(f *pflag.FlagSet) {
	f.StringVar(&k.program, "kubectl", "kubectl", "`path` of kubectl")
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "`path` of the kubeconfig file; if empty, kubectl's own")
	f.StringVar(&k.context, "context", "", "`name` of the kubeconfig's context")
	f.StringVar(&k.namespace, "namespace", "leasehold-system", "namespace of leasehold")
	f.DurationVar(&k.timeout, "timeout", 10*time.Minute, "how long to wait for pods in each step")
}

// run calls kubectl with arguments and standard input, and returns its standard output.
func (k *kubectl) run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	for flag, value := range map[string]string{"--kubeconfig=": k.kubeconfig, "--context=": k.context} {
		if value != "" {
			args = append([]string{flag + value}, args...)
		}
	}
	cmd := exec.CommandContext(ctx, k.program, args...)
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

// object is a Kubernetes object. Fields that leasectl does not know stay as they are.
type object map[string]any

// get returns an object, nil if there is none.
func (k *kubectl) get(ctx context.Context, args ...string) (object, error) {
	out, err := k.run(ctx, nil, append([]string{"get", "--ignore-not-found", "-o", "json"}, args...)...)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, err
	}
	var o object
	return o, json.Unmarshal(out, &o)
}

// rollout waits until all pods of a DaemonSet are up to date and available.
func (k *kubectl) rollout(ctx context.Context, namespace, name string) error {
	_, err := k.run(ctx, nil, "rollout", "status", "-n", namespace, "daemonset/"+name, "--timeout="+k.timeout.String())
	return err
}

// field returns what is in an object under a path of keys, nil if there is nothing.
func (o object) field(keys ...string) any {
	var value any = map[string]any(o)
	for _, key := range keys {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

// text is field for a string, "" if there is none.
func (o object) text(keys ...string) string {
	s, _ := o.field(keys...).(string)
	return s
}

// list is field for a list of objects.
func (o object) list(keys ...string) (all []object) {
	items, _ := o.field(keys...).([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// named returns the element of a list that has a name, nil if none has it.
func named(list []object, name string) object {
	for _, o := range list {
		if o.text("name") == name {
			return o
		}
	}
	return nil
}

// arguments returns the arguments of a container that begin with a prefix.
func arguments(container object, prefix string) (all []string) {
	args, _ := container.field("args").([]any)
	for _, a := range args {
		if s, _ := a.(string); strings.HasPrefix(s, prefix) {
			all = append(all, s)
		}
	}
	return all
}
