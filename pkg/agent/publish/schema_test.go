package publish

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// schema is a part of the schema of a CRD.
type schema struct {
	Type       string
	Format     string
	Enum       []any
	Pattern    string
	MaxLength  *int
	MaxItems   *int
	Items      *schema
	Properties map[string]schema
}

func statusSchema(t *testing.T, crd string) schema {
	t.Helper()
	data, err := os.ReadFile("../../../daemonset/base/crds/ipam.leasehold.dev_" + crd + ".yaml")
	must.Succeed(t, err)
	var object struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema
				}
			}
		}
	}
	must.Succeed(t, yaml.Unmarshal(data, &object))
	return object.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
}

// unlimited returns the paths of the strings and lists whose length the schema does not limit.
func (s schema) unlimited(path string) (out []string) {
	switch {
	case s.Type == "string" && s.MaxLength == nil && s.Enum == nil && s.Format == "" && s.Pattern == "",
		s.Type == "array" && s.MaxItems == nil:
		out = []string{path}
	}
	if s.Items != nil {
		out = append(out, s.Items.unlimited(path+"[]")...)
	}
	for name, property := range s.Properties {
		out = append(out, property.unlimited(path+"."+name)...)
	}
	return out
}

// tooLong returns the paths of a value's strings and lists that are longer than the schema allows.
func (s schema) tooLong(path string, value any) (out []string) {
	switch v := value.(type) {
	case string:
		if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
			out = []string{path}
		}
	case []any:
		if s.MaxItems != nil && len(v) > *s.MaxItems {
			out = []string{path}
		}
		for _, item := range v {
			out = append(out, s.Items.tooLong(path+"[]", item)...)
		}
	case map[string]any:
		for name, item := range v {
			out = append(out, s.Properties[name].tooLong(path+"."+name, item)...)
		}
	}
	return out
}

// A stolen token of an agent can write what the schema allows.
func TestStatusIsLimited(t *testing.T) {
	for _, crd := range []string{"ipreservations", "nodeaddresspools"} {
		if paths := statusSchema(t, crd).unlimited(crd); len(paths) > 0 {
			t.Errorf("the length of %q is not limited", paths)
		}
	}
}

// The API server rejects a status that is longer than the schema allows.
func TestStatusFits(t *testing.T) {
	long := func(s string, n int) string { return strings.Repeat(s, n) }
	var leases []lease.Lease
	address := netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:0")
	for range ipamv1.MaxAddresses + 10 {
		address = address.Next()
		l := bound(address.String(), id1, 0)
		l.Pool.Network, l.Holder.IfName = long("n", 255), long("i", 15)
		l.UID, l.ReserveAs, l.Window = long("u", 128), long("r", 63), lease.Window(1<<63-2)
		leases = append(leases, l)
	}
	w := want(node, kube.Name{Namespace: long("a", 63), Name: long("p", 253)}, leases, now)
	if n := len(w.Object.Status.Addresses); n != ipamv1.MaxAddresses || len(w.Leases) != len(leases) {
		t.Errorf("%d of %d addresses are shown, and %d leases released", n, len(leases), len(w.Leases))
	}
	var statuses []cniconf.Status
	for i := range 300 {
		statuses = append(statuses, cniconf.Status{Network: fmt.Sprint(i, long("n", 252)), State: cniconf.Inactive,
			Reason: "Reason", Message: long("ä", 5000)})
	}
	statuses = append(statuses, cniconf.Status{Network: long("n", 256)})
	pool := desiredNodePool(node, []store.Usage{{Pool: lease.Pool{Network: long("a", 255)}}}, statuses)
	for crd, status := range map[string]any{"ipreservations": w.Object.Status, "nodeaddresspools": pool.Status} {
		data, err := json.Marshal(status)
		must.Succeed(t, err)
		var value map[string]any
		must.Succeed(t, json.Unmarshal(data, &value))
		if paths := statusSchema(t, crd).tooLong(crd, value); len(paths) > 0 {
			t.Errorf("%q are longer than the schema allows", paths[:min(5, len(paths))])
		}
	}
}
