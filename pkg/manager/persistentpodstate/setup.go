package persistentpodstate

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

const (
	// annotationRequired lists the node labels that a PersistentPodState added to the node selector
	// of the pod, as key=value, separated by commas.
	annotationRequired = "leasehold.dev/topology-required"
	// annotationReason explains to users which part of a PersistentPodState was not applied to the
	// pod, and why.
	annotationReason = "leasehold.dev/topology-reason"

	// annotationPatience is how long a pod waits for a node that is not ready and whose hostname a
	// PersistentPodState requires, in the forms of leasehold.dev/pin-patience; forever if not set.
	annotationPatience = "leasehold.dev/topology-patience"

	// labelGenerated marks the PersistentPodStates that the manager created, because the
	// annotations of a workload ask for them.
	labelGenerated = "leasehold.dev/generated"
	// generatedValue is the value of labelGenerated.
	generatedValue = "true"
)

// Paths of the webhooks.
const (
	podsPath    = "/persistentpodstate/pods"
	objectsPath = "/persistentpodstate/objects"
)

// Feature is the part of the manager that serves PersistentPodStates.
type Feature struct {
	kinds kube.Kinds
	// goneGrace is how long a node that was removed from the cluster counts as present.
	goneGrace time.Duration
}

// New defines the flags --pps-* on f. The fields of the Feature have the values of the flags after
// f was parsed.
func New(f *pflag.FlagSet) *Feature {
	p := &Feature{kinds: kube.StatefulSets}
	f.Func("pps-kinds",
		"comma-separated `group/version/Kind`s, beside StatefulSets, whose pods a PersistentPodState may be about",
		func(s string) (err error) { p.kinds, err = parseKinds(s); return err })
	f.DurationVar(&p.goneGrace, "pps-gone-grace", 3*time.Minute,
		"how long a node must be gone from the cluster before pods whose hostname is required may run elsewhere")
	return p
}

// Setup adds the webhooks and the controller to a manager that has not started.
func (p *Feature) Setup(mgr manager.Manager, nodes *control.Nodes) error {
	log := mgr.GetLogger().WithName("persistentpodstate")
	v := newView(p, nodes)
	events := mgr.GetEventRecorder("leasehold-manager")
	r := &role{live: mgr.GetAPIReader(), isLeader: control.IsLeader(mgr), events: events, log: log}
	server := mgr.GetWebhookServer()
	w := &webhooks{view: v, role: r, log: log}
	server.Register(podsPath, &webhook.Admission{Handler: control.PodWebhook(log, w.pod)})
	server.Register(objectsPath, &webhook.Admission{Handler: admission.HandlerFunc(w.object)})
	c := &reconciler{view: v, client: mgr.GetClient(), role: r, events: events, log: log}
	return errors.Join(pps.AddToScheme(mgr.GetScheme()), v.setup(mgr), mgr.Add(control.OnAllReplicas(r.follow)),
		control.Add(mgr, "persistentpodstate", c, true, v.follow))
}
