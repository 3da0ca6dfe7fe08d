package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// workloads are the resources to check for misplaced or invalid annotations: those whose pods are
// recreated with the same name.
var workloads = []string{"statefulsets.apps", "pods"}

// keys are the annotations that users write on pods, and for each the function that checks its
// value.
var keys = map[string]func(string) error{
	policy.Annotation:                 func(s string) error { _, err := policy.ParseWindow(s); return err },
	policy.ReserveAs:                  func(s string) error { _, err := policy.ParseReservation(s); return err },
	"leasehold.dev/pin":               func(s string) error { _, err := policy.ParsePinMode(s); return err },
	"leasehold.dev/pin-patience":      patience,
	"leasehold.dev/topology-patience": patience,
}

func patience(s string) error { _, err := policy.ParsePatience(s); return err }

// checkWorkloads finds annotations without effect: with a misspelled key, an invalid value, or on
// the wrong object.
func checkWorkloads(ctx context.Context, c *Cluster) (found []Finding, err error) {
	for _, kind := range workloads {
		all, e := c.items(ctx, "-A", kind)
		err = errors.Join(err, e)
		for _, o := range all {
			if kind == "pods" && len(o.List("metadata", "ownerReferences")) > 0 {
				continue // the owner has the template of its annotations
			}
			found = append(found, misread(kind, o)...)
		}
	}
	return found, err
}

// misread returns the findings about the annotations of one StatefulSet or pod.
func misread(kind string, o kubectl.Object) (found []Finding) {
	in := []string{"spec", "template", "metadata", "annotations"}
	if kind == "pods" {
		in = in[2:]
	}
	annotations, _ := o.Field(in...).(map[string]any)
	where := strings.Join(in, ".")
	add := func(what, decide string) {
		if kind != "pods" {
			decide += ", which replaces the pods of the workload"
		}
		found = append(found, Finding{Reason: "AnnotationUnread",
			Subject: kind + " " + o.Text("metadata", "namespace") + "/" + o.Text("metadata", "name"),
			What:    what, Why: "the pods' addresses are not kept as the annotation asks", Decide: decide})
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value, _ := annotations[key].(string)
		if valid, known := keys[key]; known {
			if err := valid(value); err != nil {
				add(fmt.Sprintf("annotation %s: %v", key, err), "which value is meant; correct it in "+where)
			}
			continue
		}
		if meant := similar(key); meant != "" && annotations[meant] == nil {
			add(fmt.Sprintf("annotation %s is not read; the key %s is", key, meant),
				"whether "+meant+" is meant; if so, rename it in "+where)
		}
	}
	own, _ := o.Field("metadata", "annotations").(map[string]any)
	if _, ok := own[policy.Annotation].(string); ok && kind != "pods" && annotations[policy.Annotation] == nil {
		add(fmt.Sprintf("annotation %s is on the workload, and not in the template of its pods", policy.Annotation),
			"whether the addresses of its pods should be kept; if so, add it to "+where)
	}
	return found
}

// similar returns the key of keys that the user probably meant by another key, or "". The two keys
// are similar if they differ only in the prefix before the slash, or in at most three letters.
func similar(key string) string {
	for _, known := range slices.Sorted(maps.Keys(keys)) {
		_, name, _ := strings.Cut(known, "/")
		_, own, prefixed := strings.Cut(key, "/")
		if !prefixed {
			own = key
		}
		if len(name) > 3 && own == name || key != known && distance(key, known) <= min(3, len(known)/8) {
			return known
		}
	}
	return ""
}

// distance returns the number of letters that must be added, removed or replaced to get b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := last
			if a[i] != b[j] {
				replaced++
			}
			last = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// limitsName is the name of the ConfigMap with the limits of namespaces.
const limitsName = "leasehold-limits"

// checkLimits finds limits of namespaces that are not valid.
func checkLimits(ctx context.Context, c *Cluster) (found []Finding, err error) {
	object, err := c.Kubectl.Own(ctx, "configmap", limitsName)
	limits := policy.Limits{}
	data, _ := object.Field("data").(map[string]any)
	for key, value := range data {
		limits[key], _ = value.(string)
	}
	if err := limits.Validate(); err != nil {
		found = append(found, Finding{Reason: "LimitsInvalid", Subject: "ConfigMap " + limitsName, What: err.Error(),
			Why:    "the agents go on with the limits that they have read before",
			Decide: "which values are meant; correct them in the ConfigMap"})
	}
	return found, err
}

// checkClocks compares the clock of each node with that of the API server. The kubelet writes its
// time into the Lease of its node every ten seconds, and the API server records its own time of
// that write in the managed fields.
func checkClocks(ctx context.Context, c *Cluster) (found []Finding, err error) {
	leases, err := c.items(ctx, "-n", "kube-node-lease", "leases.coordination.k8s.io", "--show-managed-fields")
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		node, err := time.Parse(time.RFC3339, l.Text("spec", "renewTime"))
		if err != nil {
			continue
		}
		var server time.Time
		for _, f := range l.List("metadata", "managedFields") {
			if at, err := time.Parse(time.RFC3339, f.Text("time")); err == nil && at.After(server) {
				server = at
			}
		}
		off := node.Sub(server)
		if server.IsZero() || off.Abs() <= maxBehind {
			continue
		}
		name := l.Text("metadata", "name")
		found = append(found, Finding{Reason: "ClockOff", Subject: "node " + name,
			What: fmt.Sprintf("its clock is %s off that of the API server", off.Round(time.Second)),
			Why: "other nodes and the manager take its reservations for over too early or too late: pods are not " +
				"brought back to it",
			Decide: "which of the two is right. Correct what sets the other one (chronyc tracking, timedatectl " +
				"timesync-status); a clock that is stepped disturbs other programs"})
	}
	return found, nil
}
