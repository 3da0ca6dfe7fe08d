package persistentpodstate

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// How many names of labels and annotations the manager uses of a PersistentPodState, and how many
// bytes of text, at most.
const (
	maxNames     = 64
	maxNameBytes = 4 << 10
)

// onlyTheFirst explains to users which parts of a PersistentPodState are used.
var onlyTheFirst = fmt.Sprintf("only the first %d labels and annotations with at most %d bytes are used, and the "+
	"states of the first %d pods", maxNames, maxNameBytes, maxStates)

// validateSpec checks what the schema of the CRD cannot express: how many labels and annotations
// there are, and the syntax of their names.
func validateSpec(s *pps.PersistentPodStateSpec) error {
	if err := validateSize(s); err != nil {
		return err
	}
	for _, key := range labelsOf(s) {
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return fmt.Errorf("%q is not the name of a node label: %s", key, strings.Join(errs, "; "))
		}
	}
	for _, a := range s.PersistentPodAnnotations {
		if errs := validation.IsQualifiedName(strings.ToLower(a.Key)); len(errs) > 0 {
			return fmt.Errorf("%q is not the name of an annotation: %s", a.Key, strings.Join(errs, "; "))
		}
	}
	return nil
}

// validateSize returns an error if the spec names too many labels and annotations.
func validateSize(s *pps.PersistentPodStateSpec) error {
	names := append(labelsOf(s), annotationsOf(s)...)
	if bytes := len(strings.Join(names, "")); len(names) > maxNames || bytes > maxNameBytes {
		return fmt.Errorf("it names %d labels and annotations with %d bytes; want at most %d with %d bytes",
			len(names), bytes, maxNames, maxNameBytes)
	}
	return nil
}

// validate returns an error if the target of the object has none of the given kinds, or if there
// are other objects with the same target, or if the spec is invalid.
func validate(o *pps.PersistentPodState, kinds kube.Kinds, others []string) error {
	if _, ok := kinds.Find(targetOf(o).Kind); !ok {
		return fmt.Errorf(
			"spec.targetRef: %s of %s is not a supported kind; want %s (add kinds with the manager's --pps-kinds)",
			o.Spec.TargetRef.Kind, o.Spec.TargetRef.APIVersion, kindNames(kinds))
	}
	if len(others) > 0 {
		return fmt.Errorf(
			"spec.targetRef: PersistentPodState %s has the target %s %s already; a workload can have only one",
			others[0], o.Spec.TargetRef.Kind, o.Spec.TargetRef.Name)
	}
	if err := validateSpec(&o.Spec); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	return nil
}

// parseKinds parses the value of --pps-kinds, which is a list of group/version/Kind separated by
// commas. It returns kube.StatefulSets and the parsed kinds.
func parseKinds(s string) (kube.Kinds, error) {
	kinds := slices.Clone(kube.StatefulSets)
	if s == "" {
		return kinds, nil
	}
	for element := range strings.SplitSeq(s, ",") {
		parts := strings.Split(element, "/")
		if len(parts) != 3 || len(validation.IsDNS1123Subdomain(parts[0])) > 0 ||
			slices.ContainsFunc(parts[1:],
				func(s string) bool { return len(validation.IsDNS1035Label(strings.ToLower(s))) > 0 }) {
			return nil, fmt.Errorf("%q is not a kind; want group/version/Kind, such as example.com/v1/Database",
				element)
		}
		kind := schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
		if _, known := kinds.Find(kind.GroupKind()); !known {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// kindNames formats kinds for messages.
func kindNames(kinds kube.Kinds) string {
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.Kind+" of "+kind.Group)
	}
	return strings.Join(names, ", ")
}
