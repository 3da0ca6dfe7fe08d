package v1beta1

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestNormalize(t *testing.T) {
	content := must.Read(t, "testdata/normalize.yaml")
	var tests []struct {
		Name      string
		Old       *PersistentPodStateSpec
		Written   PersistentPodStateSpec
		Required  []string
		Preferred [][]string
		Rejected  bool
	}
	must.Succeed(t, yaml.UnmarshalStrict(content, &tests))
	if len(tests) < 17 {
		t.Errorf("only %d cases", len(tests))
	}
	for _, tt := range tests {
		t.Run(tt.Name, func(t *testing.T) {
			if err := tt.Written.Normalize(tt.Old); tt.Rejected != (err != nil) {
				t.Fatalf("normalized to %+v, %v; want an error: %t", tt.Written, err, tt.Rejected)
			}
			if !tt.Rejected {
				checkLists(t, &tt.Written, tt.Required, tt.Preferred)
			}
		})
	}
}

// checkLists compares a normalized spec with lists, under both names.
func checkLists(t check.T, s *PersistentPodStateSpec, required []string, preferred [][]string) {
	t.Helper()
	var keys, topologyKeys []string
	if r := s.RequiredPersistentTopology; r != nil {
		keys, topologyKeys = r.Keys, r.NodeTopologyKeys
	}
	check.NoDiff(t, cmp.Diff([][]string{required, required}, [][]string{keys, topologyKeys}), "required")
	var inBeta, inAlpha [][]string
	for _, p := range s.PreferredPersistentTopology {
		inBeta, inAlpha = append(inBeta, p.Preference.Keys), append(inAlpha, p.Preference.NodeTopologyKeys)
	}
	check.NoDiff(t, cmp.Diff([][][]string{preferred, preferred}, [][][]string{inBeta, inAlpha}), "preferred")
}

// FuzzNormalize verifies that a normalized spec has both lists, does not change when it is
// normalized again, and stays the same when a client of either version writes it back.
func FuzzNormalize(f *testing.F) {
	f.Add(`{"requiredPersistentTopology":{"keys":["zone"]}}`,
		`{"requiredPersistentTopology":{"keys":["a"],"nodeTopologyKeys":["zone"]}}`)
	f.Add(`{"preferredPersistentTopology":[{"preference":{"nodeTopologyKeys":["a","a"]}}]}`,
		`{"preferredPersistentTopology":[{"preference":{"keys":[]}}]}`)
	f.Fuzz(func(t *testing.T, first, second string) {
		var old, s PersistentPodStateSpec
		if json.Unmarshal([]byte(first), &old) != nil || json.Unmarshal([]byte(second), &s) != nil {
			return
		}
		if old.Normalize(nil) != nil || s.Normalize(&old) != nil {
			return
		}
		for _, drop := range []func(*NodeTopologyTerm){
			func(*NodeTopologyTerm) {},
			func(t *NodeTopologyTerm) { t.Keys = nil },
			func(t *NodeTopologyTerm) { t.NodeTopologyKeys = nil },
		} {
			again := s.DeepCopy()
			if r := again.RequiredPersistentTopology; r != nil {
				if len(r.Keys) == 0 || !slices.Equal(r.Keys, r.NodeTopologyKeys) {
					t.Errorf("required has %q and %q", r.Keys, r.NodeTopologyKeys)
				}
				drop(r)
			}
			for i := range again.PreferredPersistentTopology {
				drop(&again.PreferredPersistentTopology[i].Preference)
			}
			must.Succeed(t, again.Normalize(&s))
			check.NoDiff(t, cmp.Diff(&s, again), "written back")
		}
	})
}
