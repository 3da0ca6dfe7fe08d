// Package permissions has the accounts of leasehold and those of tenants try writes that they may
// and may not make. Each validation of the policies has to refuse one.
package permissions

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
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
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// managerPlus is an account of the table: the manager's, should roles allow it everything.
const managerPlus = "manager+"

// An account is a service account, and the node to which its token is bound, "" for none.
type account struct{ namespace, name, node string }

// accounts are those who try to write.
var accounts = map[string]account{
	"manager":   {"leasehold-system", "leasehold-manager", ""},
	managerPlus: {"leasehold-system", "leasehold-manager", ""},
	"agent-1":   {"leasehold-system", "leasehold-agent", "node-1"},
	"agent-2":   {"leasehold-system", "leasehold-agent", "node-2"},
	// An agent of a node with a longer name than an Event may have as its reportingInstance.
	"agent-long": {"leasehold-system", "leasehold-agent", strings.Repeat("node.", 40) + "x"},
	// The token of an agent that somebody has taken from its node, and used with no pod.
	"unbound": {"leasehold-system", "leasehold-agent", ""},
	// An account that is named like the agent's, and may do everything in the namespace tenant.
	"impostor": {"tenant", "leasehold-agent", "node-2"},
	"admin":    {"tenant", "admin", ""}, // has the role of that name in the namespace tenant
	"all":      {"tenant", "all", ""},   // may do everything there
}

// confining are the prefixes of the names of the policies that restrict accounts.
var confining = []string{"leasehold-agent", "leasehold-manager", "leasehold-reservations", "leasehold-limits",
	"leasehold-requests"}

// explaining are the messages of validations whose writes another validation refuses, too, with a
// text that says less.
var explaining = []string{"the token of the agent is not bound to a pod on a node"}

// settleTime is how long at most the API server may take to use a changed policy, role or CRD.
const settleTime = 30 * time.Second

// A checker tries the writes of an API server's clients.
type checker struct {
	config  *rest.Config
	mapper  meta.RESTMapper
	client  kubernetes.Interface
	admin   dynamic.Interface
	clients map[string]dynamic.Interface // by account
	table   struct{ Published, Attempts []attempt }
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
	text, err := os.ReadFile("attempts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &c.table); err != nil {
		t.Fatal(err)
	}
	if err := c.setUp(t.Context()); err != nil {
		t.Fatalf("setting up: %v", err)
	}
	for _, a := range c.table.Attempts {
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
	for _, w := range c.table.Published {
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

// An attempt is an element of attempts.yaml.
type attempt struct {
	Try     string // account, verb, kind and name
	Body    string
	Refused string // part of the API server's message; "": it is allowed
}

func (a attempt) String() string { return a.Try + " " + strings.Join(strings.Fields(a.Body), " ") }

// event returns an Event about an object. The namespace of an Event about a node is default.
func event(controller, instance, kind, name string) string {
	namespace := "tenant"
	if kind == "Node" {
		namespace = "default"
	}
	return fmt.Sprintf(`{eventTime: "2026-01-01T00:00:00.000000Z", reportingController: %s, reportingInstance: %s,
		action: Assign, reason: AddressKept, type: Normal, note: kept,
		regarding: {apiVersion: v1, kind: %s, namespace: %s, name: %s}}`, controller, instance, kind, namespace, name)
}

// meets tries an attempt without effect, and returns an error if its result is not the expected.
func (c *checker) meets(ctx context.Context, a attempt) error {
	return machine.Poll(ctx, settleTime, func() error {
		err := c.try(ctx, a, []string{metav1.DryRunAll})
		switch {
		case a.Refused == "" && err != nil:
			return fmt.Errorf("want it allowed: %w", err)
		case a.Refused == "", err != nil && strings.Contains(err.Error(), a.Refused):
			return nil
		case err != nil:
			return fmt.Errorf("want it refused with %q: %w", a.Refused, err)
		}
		return fmt.Errorf("allowed; want it refused with %q", a.Refused)
	})
}

// try makes an attempt as its account, and returns the API server's error. It has
// one case for each verb.
func (c *checker) try(ctx context.Context, a attempt, dryRun []string) error {
	line, err := c.fill(ctx, a.Try)
	if err != nil {
		return err
	}
	body, err := c.fill(ctx, a.Body)
	if err != nil {
		return err
	}
	words := strings.Fields(line)
	as, verb, kind := words[0], words[1], words[2]
	namespace, name, found := strings.Cut(words[3], "/")
	if !found {
		namespace, name = "", namespace
	}
	resource, more := strings.Split(kind, "/")[0], strings.Split(kind, "/")[1:] // the subresource
	gvr, err := c.mapper.ResourceFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return err
	}
	client, admin := c.clients[as].Resource(gvr).Namespace(namespace), c.admin.Resource(gvr).Namespace(namespace)
	switch verb {
	case "create":
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(body), &o.Object); err != nil {
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
		kind := types.JSONPatchType
		if strings.HasPrefix(body, "{") {
			kind = types.MergePatchType
		}
		_, err = client.Patch(ctx, name, kind, []byte(body), metav1.PatchOptions{DryRun: dryRun}, more...)
		return err
	case "update":
		o, err := admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := apply(o, body); err != nil {
			return err
		}
		_, err = client.Update(ctx, o, metav1.UpdateOptions{DryRun: dryRun}, more...)
		return err
	case "delete", "delete-without-uid":
		o, err := admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		uid := o.GetUID()
		options := metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &uid}}
		if verb != "delete" {
			options.Preconditions = nil
		}
		return client.Delete(ctx, name, options)
	}
	return fmt.Errorf("unknown verb %q", verb)
}

var eventOf = regexp.MustCompile(`EVENT\((\S+) (\S+) (\S+) (\S+)\)`)

// fill replaces UID(node), HASH(node) and EVENT(controller instance kind name) in a line or a body.
func (c *checker) fill(ctx context.Context, body string) (string, error) {
	if m := eventOf.FindStringSubmatch(body); m != nil {
		body = event(m[1], m[2], m[3], m[4])
	}
	for _, name := range []string{"node-1", "node-2"} {
		n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		body = strings.ReplaceAll(body, "UID("+name+")", string(n.UID))
		body = strings.ReplaceAll(body, "HASH("+name+")", string(n.UID[:8]))
	}
	return body, nil
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
				!slices.ContainsFunc(c.table.Attempts, func(a attempt) bool { return a.Refused == message }) {
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
