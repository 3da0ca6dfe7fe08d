// Package permissions has the accounts of leasehold and those of tenants try writes that they may
// and may not make. Each validation of the policies has to refuse one.
package permissions

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
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
}

// TestPermissions tries all writes of the table on the API server of KUBECONFIG, to which the
// manifests are applied, and the objects of fixture.yaml. `make check-deploy` runs it.
func TestPermissions(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, admin := kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)
	c := &checker{config: config, client: client, admin: admin, clients: map[string]dynamic.Interface{},
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
	if err := c.setUp(t.Context()); err != nil {
		t.Fatalf("setting up: %v", err)
	}
	for _, a := range attempts {
		if err := c.meets(t.Context(), a); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	c.checkValidations(t)
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
		if err := machine.Poll(ctx, settleTime, func() error { return c.try(ctx, w, nil) }); err != nil {
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

// An attempt is a write of an account.
type attempt struct {
	as      string // an account
	verb    string // create, update, patch, delete, or delete without uid
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
	return machine.Poll(ctx, settleTime, func() error {
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
func (c *checker) checkValidations(t *testing.T) {
	policies := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	list, err := policies.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if !slices.ContainsFunc(confining, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			continue
		}
		for _, v := range p.Spec.Validations {
			message := messageOf(v)
			if !slices.Contains(explaining, message) &&
				!slices.ContainsFunc(attempts, func(a attempt) bool { return a.refused == message }) {
				t.Errorf("%s: no write of the table is refused with %q", p.Name, message)
			}
		}
	}
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
