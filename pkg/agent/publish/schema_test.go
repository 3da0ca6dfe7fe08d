package publish

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A stolen token of an agent can write what the schema allows.
func TestStatusIsLimited(t *testing.T) {
	for _, kind := range []string{"IPReservation", "NodeAddressPool"} {
		limits := fakeapi.LimitsOf(t, kind, "v1alpha1")
		if len(limits[".status"].Properties) == 0 {
			t.Errorf("no CRD has the status of a %s", kind)
		}
		for path, s := range limits {
			isText := s.Type.Contains("string") && s.MaxLength == nil && s.Enum == nil && s.Format == "" &&
				s.Pattern == ""
			isList := s.Type.Contains("array") && s.MaxItems == nil
			if strings.HasPrefix(path, ".status") && (isText || isList) {
				t.Errorf("the length of %s of a %s is not limited", path, kind)
			}
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
	pool.Status.Conditions[0].LastTransitionTime = metav1.Now()
	for kind, status := range map[string]any{"IPReservation": w.Object.Status, "NodeAddressPool": pool.Status} {
		data, err := json.Marshal(status)
		must.Succeed(t, err)
		var value map[string]any
		must.Succeed(t, json.Unmarshal(data, &value))
		schema := fakeapi.LimitsOf(t, kind, "v1alpha1")[".status"]
		must.Succeed(t, validate.NewSchemaValidator(&schema, nil, "", strfmt.Default).Validate(value).AsError(), kind)
	}
}
