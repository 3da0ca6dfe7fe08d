package persistentpodstate

import (
	"crypto/sha256"
	_ "embed"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// crdName is the name of the CRD, leasehold's or Kruise's.
const crdName = "persistentpodstates.apps.kruise.io"

// The label and the annotation of a CRD that leasehold created. leasehold never changes a CRD
// without the label.
const (
	managedBy = "app.kubernetes.io/managed-by"
	us        = "leasehold"
	// crdVersion is set on the CRD of PersistentPodState by the manager. Its value is a hash of the
	// CRD that is part of the program. If it differs, the manager updates the CRD.
	crdVersion = "leasehold.dev/crd-version"
)

//go:embed crd/apps.kruise.io_persistentpodstates.yaml
var crdText []byte

// embeddedCRD returns the CRD of PersistentPodState that is part of this program. The embedded file
// has v1beta1 only. embeddedCRD adds v1alpha1 with the same schema, so that no conversion is
// needed.
func embeddedCRD() *unstructured.Unstructured {
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(crdText, &crd.Object); err != nil {
		panic(fmt.Sprintf("the embedded CRD: %v", err)) // it is part of the program, and TestCRD reads it
	}
	crd.SetLabels(map[string]string{managedBy: us})
	crd.SetAnnotations(map[string]string{crdVersion: fmt.Sprintf("%.8x", sha256.Sum256(crdText))})
	spec := crd.Object["spec"].(map[string]any)
	versions := spec["versions"].([]any)
	alpha := (&unstructured.Unstructured{Object: versions[0].(map[string]any)}).DeepCopy().Object
	alpha["name"], alpha["storage"] = pps.Alpha, false
	spec["versions"] = append([]any{alpha}, versions...)
	return &crd
}

// targetUIDSchema is the path of status.targetUID in a version of the CRD. Without that field the
// API server removes it from each status, and leasehold would write the status again and again.
// Kruise's CRD does not have it.
var targetUIDSchema = []string{"schema", "openAPIV3Schema", "properties", "status", "properties", "targetUID"}

// unsupported returns why leasehold cannot serve the CRD that exists in the cluster, or "" if
// leasehold can. crd is nil if the cluster has no CRD of this name, so that leasehold will create
// it.
func unsupported(crd *unstructured.Unstructured) string {
	if crd == nil {
		return ""
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, item := range versions {
		version, _ := item.(map[string]any)
		if version["name"] != pps.GroupVersion.Version || version["served"] != true {
			continue
		}
		if _, has, _ := unstructured.NestedMap(version, "subresources", "status"); !has {
			return fmt.Sprintf("version %s of its CRD, which leasehold did not create, has no status subresource",
				pps.GroupVersion.Version)
		}
		if _, has, _ := unstructured.NestedMap(version, targetUIDSchema...); !has {
			return fmt.Sprintf("version %s of its CRD, which leasehold did not create, has no status.targetUID: "+
				"it is Kruise's; docs/persistentpodstate.md explains how to replace it and keep its objects",
				pps.GroupVersion.Version)
		}
		return ""
	}
	return fmt.Sprintf("its CRD, which leasehold did not create, does not have version %s: it is from an older Kruise",
		pps.GroupVersion.Version)
}
