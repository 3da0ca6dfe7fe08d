package pin

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Options are the settings of the pin on the command line of the manager.
type Options struct {
	Mode       policy.PinMode     // for pods without a mode in their annotations or on their namespace
	Schedulers []string           // names of the schedulers that respect node affinity
	Kinds      []schema.GroupKind // controllers that create a deleted pod again at once
}

// Setup adds the webhook and the controllers of the pin to a manager that has not started.
// unconfirmed says since when no agent confirms the reservations of a node, and why, and is "" if
// one does.
func Setup(mgr manager.Manager, set *control.Reservations, nodes *control.Nodes, unconfirmed func(node string) string,
	o Options) error {
	log := mgr.GetLogger().WithName("pin")
	c, err := newCluster(mgr, set, nodes, o.Kinds)
	if err != nil {
		return err
	}
	w := &webhook{Options: o, cluster: c, unconfirmed: unconfirmed, log: log}
	mgr.GetWebhookServer().Register(webhookPath, &admission.Webhook{Handler: control.PodWebhook(log, w.pin)})
	report := newReporter(mgr.GetEventRecorder("leasehold-manager"))
	p := newPatienceReconciler(c, mgr.GetClient(), report, log)
	e := &eventReconciler{cluster: c, report: report}
	isReady := func(*http.Request) error {
		if c.Synced() {
			return nil
		}
		return errors.New("pods, reservations, nodes or namespaces have not been listed yet")
	}
	return errors.Join(metrics.Registry.Register(decisions), metrics.Registry.Register(replacements),
		mgr.AddReadyzCheck("pin", isReady), control.Add(mgr, "patience", p, false, p.follow),
		control.Add(mgr, "events", e, true, e.follow))
}

func requestOf(p *podView) reconcile.Request { return control.RequestFor(keyOf(p)) }

func keyOf(p *podView) string { return p.Namespace + "/" + p.Name }

// The metrics of the pin.
var (
	decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leasehold_pin_decisions_total",
		Help: "Retained pods admitted, by the mode of their pin (none: not pinned) and by the reason.",
	}, []string{"mode", "reason"})
	replacements = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "leasehold_pin_replacements_total",
		Help: "Pending pods deleted because the node that they were pinned to did not accept them in time.",
	})
)
