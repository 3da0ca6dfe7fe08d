package topology

import (
	"crypto/sha256"
	_ "embed"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// crdName is the name of the CRD, whoever made it.
const crdName = "persistentpodstates.apps.kruise.io"

// Whoever made the CRD is its owner: Kruise's is left as it is.
const (
	managedBy = "app.kubernetes.io/managed-by"
	us        = "leasehold"
	// crdVersion is a hash of the CRD as it was made here, so that a newer manager renews it.
	crdVersion = "leasehold.dev/crd-version"
)

//go:embed crd/apps.kruise.io_persistentpodstates.yaml
var crdText []byte

// CRD is the PersistentPodState's, in both versions with one schema: there is nothing to convert.
func CRD() (*unstructured.Unstructured, error) {
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(crdText, &crd.Object); err != nil {
		return nil, fmt.Errorf("reading the CRD that is built in: %w", err)
	}
	crd.SetLabels(map[string]string{managedBy: us})
	crd.SetAnnotations(map[string]string{crdVersion: fmt.Sprintf("%.8x", sha256.Sum256(crdText))})
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil || len(versions) != 1 {
		return nil, fmt.Errorf("the CRD that is built in has %d versions, want 1: %w", len(versions), err)
	}
	alpha := (&unstructured.Unstructured{Object: versions[0].(map[string]any)}).DeepCopy().Object
	alpha["name"], alpha["storage"] = pps.Alpha, false
	return &crd, unstructured.SetNestedSlice(crd.Object, append([]any{alpha}, versions...), "spec", "versions")
}

// unfit says why a CRD, which may be somebody else's, cannot be served; "" if it can. Nil is one that is not there yet.
func unfit(crd *unstructured.Unstructured) string {
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
			return fmt.Sprintf("in its CRD, which is somebody else's, version %s has no status of its own", pps.GroupVersion.Version)
		}
		return ""
	}
	return fmt.Sprintf("its CRD, which is somebody else's, does not have version %s: it is an older Kruise's", pps.GroupVersion.Version)
}
