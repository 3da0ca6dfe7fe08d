// Package permissions has the accounts of leasehold and those of tenants try writes that they may
// and may not make. Each validation of the policies has to refuse one.
package permissions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// settleTime is how long at most the API server may take to use a changed policy, role or CRD.
const settleTime = 30 * time.Second

// A checker tries the writes of an API server's clients.
type checker struct {
	config  *rest.Config
	mapper  meta.RESTMapper
	client  kubernetes.Interface
	admin   dynamic.Interface
	clients map[string]dynamic.Interface // by account
	logf    func(format string, args ...any)
}

// Check tries all writes of the table on an API server to which the manifests are applied, and the
// objects of fixture.yaml.
func Check(ctx context.Context, config *rest.Config, logf func(format string, args ...any)) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	c := &checker{config: config, client: client, admin: admin, clients: map[string]dynamic.Interface{}, logf: logf,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
	if err := c.setUp(ctx); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	var problems []error
	for _, a := range attempts {
		if err := c.meets(ctx, a); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", a, err))
		}
	}
	logf("%d writes were tried", len(attempts))
	return errors.Join(append(problems, c.checkValidations(ctx))...)
}

// setUp creates the accounts' clients, and has the agents publish.
func (c *checker) setUp(ctx context.Context) error {
	for name, a := range accounts {
		config, err := c.impersonating(ctx, a, name == managerPlus)
		if err != nil {
			return err
		}
		if c.clients[name], err = dynamic.NewForConfig(config); err != nil {
			return err
		}
	}
	for _, w := range published {
		if err := within(ctx, func() error { return c.try(ctx, w, nil) }); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	return nil
}

// impersonating returns the configuration of a client that the API server treats as if it had the
// account's token, or as an administrator of the account's name.
func (c *checker) impersonating(ctx context.Context, a account, administrator bool) (*rest.Config, error) {
	config, as := rest.CopyConfig(c.config), rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + a.namespace + ":" + a.name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"}}
	if administrator {
		as.Groups = []string{"system:masters"}
	}
	if a.node != "" {
		node, err := c.client.CoreV1().Nodes().Get(ctx, a.node, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		as.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {a.node},
			"authentication.kubernetes.io/node-uid": {string(node.UID)}}
	}
	config.Impersonate = as
	return config, nil
}

// An attempt is a write, or a read, of an account.
type attempt struct {
	as      string // an account
	verb    string // create, update, patch, delete, get or list
	kind    string // "resource/subresource", or "resource.group"
	name    string // "namespace/name", or the name alone
	body    string // of create the object; of update and patch a JSON patch
	refused string // part of the API server's message; "": it is allowed
}

func (a attempt) String() string {
	return fmt.Sprintf("%s: %s %s %s %s", a.as, a.verb, a.kind, a.name, strings.Join(strings.Fields(a.body), " "))
}

// meets tries an attempt without effect, and returns an error if its result is not the expected.
func (c *checker) meets(ctx context.Context, a attempt) error {
	return within(ctx, func() error {
		err := c.try(ctx, a, []string{metav1.DryRunAll})
		switch {
		case a.refused == "" && err != nil:
			return fmt.Errorf("want it allowed: %w", err)
		case a.refused == "", err != nil && strings.Contains(err.Error(), a.refused):
			return nil
		case err != nil:
			return fmt.Errorf("want it refused with %q: %w", a.refused, err)
		}
		return fmt.Errorf("allowed; want it refused with %q", a.refused)
	})
}

// try makes an attempt as its account, and returns the API server's error. It has
// one case for each verb.
func (c *checker) try(ctx context.Context, a attempt, dryRun []string) error {
	namespace, name, found := strings.Cut(a.name, "/")
	if !found {
		namespace, name = "", namespace
	}
	resource, sub, _ := strings.Cut(a.kind, "/")
	var more []string
	if sub != "" {
		more = []string{sub}
	}
	gvr, err := c.mapper.ResourceFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return err
	}
	client, admin := c.clients[a.as].Resource(gvr).Namespace(namespace), c.admin.Resource(gvr).Namespace(namespace)
	switch a.verb {
	case "create":
		o := &unstructured.Unstructured{}
		body, err := c.fill(ctx, a.body)
		if err != nil {
			return err
		}
		if err := yaml.Unmarshal(body, &o.Object); err != nil {
			return err
		}
		kind, err := c.mapper.KindFor(gvr)
		if err != nil {
			return err
		}
		o.SetGroupVersionKind(kind)
		o.SetName(name)
		_, err = client.Create(ctx, o, metav1.CreateOptions{DryRun: dryRun}, more...)
		return err
	case "patch":
		body, err := c.fill(ctx, a.body)
		if err != nil {
			return err
		}
		kind := types.JSONPatchType
		if strings.HasPrefix(a.body, "{") {
			kind = types.MergePatchType
		}
		_, err = client.Patch(ctx, name, kind, body, metav1.PatchOptions{DryRun: dryRun}, more...)
		return err
	case "update":
		o, err := admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := apply(o, a.body); err != nil {
			return err
		}
		_, err = client.Update(ctx, o, metav1.UpdateOptions{DryRun: dryRun}, more...)
		return err
	case "delete", "delete without uid":
		o, err := admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		uid := o.GetUID()
		options := metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &uid}}
		if a.verb != "delete" {
			options.Preconditions = nil
		}
		return client.Delete(ctx, name, options)
	case "get":
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return err
	case "list":
		options := metav1.ListOptions{}
		if name != "" {
			options.FieldSelector = "metadata.name=" + name
		}
		_, err := client.List(ctx, options)
		return err
	}
	return fmt.Errorf("unknown verb %q", a.verb)
}

// fill replaces UID(node) in a body by the UID of that node.
func (c *checker) fill(ctx context.Context, body string) ([]byte, error) {
	for _, name := range []string{"node-1", "node-2"} {
		if !strings.Contains(body, "UID("+name+")") {
			continue
		}
		n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		body = strings.ReplaceAll(body, "UID("+name+")", string(n.UID))
	}
	return []byte(body), nil
}

// apply applies a JSON patch to an object.
func apply(o *unstructured.Unstructured, patch string) error {
	p, err := jsonpatch.DecodePatch([]byte(patch))
	if err != nil {
		return err
	}
	before, err := json.Marshal(o)
	if err != nil {
		return err
	}
	after, err := p.Apply(before)
	if err != nil {
		return err
	}
	return json.Unmarshal(after, &o.Object)
}

// checkValidations checks that each validation of the policies refuses a write of the table.
func (c *checker) checkValidations(ctx context.Context) error {
	list, err := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var problems []error
	for _, p := range list.Items {
		if !slices.ContainsFunc(confining, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			continue
		}
		for _, v := range p.Spec.Validations {
			message := messageOf(v)
			if !slices.Contains(explaining, message) &&
				!slices.ContainsFunc(attempts, func(a attempt) bool { return a.refused == message }) {
				problems = append(problems, fmt.Errorf("%s: no write of the table is refused with %q", p.Name, message))
			}
		}
	}
	return errors.Join(problems...)
}

// messageOf returns the message of a validation, or a constant part of its message expression.
func messageOf(v admissionv1.Validation) string {
	if v.Message != "" {
		return v.Message
	}
	_, text, _ := strings.Cut(v.MessageExpression, " + '")
	text, _, _ = strings.Cut(text, "'")
	return strings.TrimSpace(text)
}

// within calls a function until it returns nil, or settleTime is over.
func within(ctx context.Context, what func() error) error {
	var last error
	const interval = 100 * time.Millisecond
	err := wait.PollUntilContextTimeout(ctx, interval, settleTime, true, func(context.Context) (bool, error) {
		last = what()
		return last == nil, nil
	})
	return cmp.Or(last, err)
}
