package publish

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	fakeapi.Reader[*ipamv1.NodeAddressPool]{
		New:  func() *kube.Informer[*ipamv1.NodeAddressPool] { return NewPool(nil, "node1").Informer },
		Kind: ipamv1.GroupVersion.WithKind("NodeAddressPool"), Good: &ipamv1.NodeAddressPool{},
		Limit: oneObject}.Test(t)
}

// oneObject is how much may be kept of an object that is the only one of its kind. The test makes a
// larger one than an API server accepts.
const oneObject = 16 << 20

// A reservation of the node that cannot be decoded is written again, whether it is listed or read
// because the manager names it. So are the others of the node.
func TestUndecodableReservations(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	bad := func(name string) {
		o := map[string]any{}
		if !p.server.Get(objects+name, &o) {
			t.Fatalf("no object %s", name)
		}
		o["status"].(map[string]any)["heldUntil"] = "2026-11-29t08:00:00z"
		p.server.Put(objects+name, o)
	}
	for _, when := range []string{"listed", "named", "written"} {
		t.Run(when, func(t *testing.T) {
			bad(mine)
			p.log.Reset()
			switch when {
			case "listed":
				p.restart()
				p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
			case "named":
				p.server.Put(poolPath, ipamv1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
					Spec: ipamv1.NodeAddressPoolSpec{Reservations: []ipamv1.ReservationReference{
						{Namespace: "db", Name: "none"}, {Namespace: "db", Name: mine}}}})
			case "written": // the response to a write of another part cannot be decoded
				p.known[kube.Name{Namespace: "db", Name: mine}].Labels = nil
			}
			for range 2 {
				p.after(time.Minute)
				p.publish()
			}
			for name, want := range map[string]string{mine: "Bound 10.0.0.2", "db-1-5f1c9a02": "Bound 10.0.0.3"} {
				o := map[string]any{}
				p.server.Get(objects+name, &o)
				check.Equal(t, p.state(name), want, name, o)
			}
			if n := strings.Count(p.log.String(), mine); n != 1 && when == "named" {
				t.Errorf("%d lines name the object: %s", n, &p.log)
			}
		})
	}
}
