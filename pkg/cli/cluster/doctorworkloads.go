package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// workloads are the resources to check for annotations without effect.
var workloads = []string{"statefulsets.apps", deployments, "pods"}

// deployments are workloads whose pods get new names each time.
const deployments = "deployments.apps"

// keys are the annotations that users write on pods. An admission policy rejects invalid values.
var keys = []string{policy.Annotation, policy.ReserveAs, "leasehold.dev/pin", "leasehold.dev/pin-patience",
	"leasehold.dev/topology-patience"}

// checkWorkloads finds annotations without effect: with a misspelled key, or on the wrong object.
func (d *clusterDoctor) checkWorkloads(ctx context.Context) {
	for _, kind := range workloads {
		all := d.list(ctx, "-A", kind)
		d.workloads += len(all)
		for _, o := range all {
			if kind != "pods" || len(o.List("metadata", "ownerReferences")) == 0 { // whose template has the annotations
				d.checkAnnotations(kind, o)
			}
		}
	}
}

// checkAnnotations checks the annotations of one workload or pod.
func (d *clusterDoctor) checkAnnotations(kind string, o object) {
	in := []string{"spec", "template", "metadata", "annotations"}
	if kind == "pods" {
		in = in[2:]
	}
	annotations := o.In(in...)
	add := func(what, meant string) {
		d.Find(cli.Finding{Reason: "AnnotationUnread",
			Subject: kind + " " + namespaceOf(o) + "/" + nameOf(o),
			What:    what, Why: "the pods' addresses are not kept as the annotation asks",
			Decide: "whether " + meant + " is meant; if so, write it into " + strings.Join(in, ".") +
				", which replaces the pods of a workload"})
	}
	asks := func(in object) bool { // a window of 0 asks for nothing
		window, err := policy.ParseWindow(in.Text(policy.Annotation))
		return in[policy.Annotation] != nil && (err != nil || window != 0)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if meant := similar(key); meant != "" && annotations[meant] == nil {
			add(fmt.Sprintf("annotation %s is not read; the key %s is", key, meant), meant)
		}
	}
	if kind == deployments && asks(annotations) && annotations[policy.ReserveAs] == nil {
		add(fmt.Sprintf("annotation %s has no effect on pods that get new names each time", policy.Annotation),
			policy.ReserveAs)
	}
	if kind != "pods" && asks(o.In("metadata", "annotations")) && annotations[policy.Annotation] == nil {
		add(fmt.Sprintf("annotation %s is on the workload, and not in the template of its pods", policy.Annotation),
			policy.Annotation)
	}
}

// similar returns the key of keys that the user probably meant by another key, or "": that in other
// letters, with the same name after another prefix, or the one for the window, of which there is a
// part.
func similar(key string) string {
	if slices.Contains(keys, key) {
		return ""
	}
	key = strings.ToLower(key)
	for _, known := range keys {
		if _, name, _ := strings.Cut(known, "/"); key == known || len(name) > 3 && strings.HasSuffix(key, name) {
			return known
		}
	}
	if strings.Contains(key, "reserved-ip") {
		return policy.Annotation
	}
	return ""
}

// checkRejected finds workloads whose pods are missing because a policy of the cluster rejects
// them. It may be the pin that the policy rejects, which no manifest shows. Users may write any
// number of Events with any names, so that none of these is an argument of kubectl.
func (d *clusterDoctor) checkRejected(ctx context.Context) {
	denied := map[string]string{} // the last message, by kind, namespace and name
	for _, e := range d.list(ctx, "-A", "events", "--field-selector=reason=FailedCreate") {
		if text, o := e.Text("message"), e.In("involvedObject"); strings.Contains(text, "denied") {
			denied[o.Text("kind")+" "+o.Text("namespace")+"/"+o.Text("name")] = text
		}
	}
	if len(denied) == 0 {
		return
	}
	for _, o := range d.list(ctx, "-A", "statefulsets.apps,replicasets.apps") { // whose pods the manager pins
		subject := o.Text("kind") + " " + namespaceOf(o) + "/" + nameOf(o)
		annotations := o.In("spec", "template", "metadata", "annotations")
		isMissing := o.Number("status", "replicas") < o.Number("spec", "replicas")
		if denied[subject] != "" && annotations.Text(policy.Annotation) != "" && isMissing {
			d.Find(cli.Finding{Reason: "PodRejected", Subject: subject, What: denied[subject],
				Why: "pods of the workload are not created again",
				Decide: "whether the policy rejects the node affinity that the manager adds to a pod whose address " +
					"is held. If so, exempt node affinity with the key leasehold.dev/pinned-node from the policy, " +
					"or label the namespace leasehold.dev/pin=none"})
		}
	}
}

// limitsName is the name of the ConfigMap with the limits of namespaces.
const limitsName = "leasehold-limits"

// checkLimits finds limits of namespaces that are not valid.
func (d *clusterDoctor) checkLimits(ctx context.Context) {
	object, err := d.own(ctx, "configmap", limitsName)
	d.Fail(err)
	limits := policy.Limits{}
	for key, value := range object.In("data") {
		limits[key], _ = value.(string)
	}
	if err := limits.Validate(); err != nil {
		d.Find(cli.Finding{Reason: "LimitsInvalid", Subject: "ConfigMap " + limitsName,
			What: err.Error(), Why: "the agents go on with the limits that they have read before",
			Decide: "which values are meant; correct them in the ConfigMap"})
	}
}
