package v1beta1

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/test/must"
)

// spec decodes a spec as a client writes it.
func spec(t testing.TB, text string) *PersistentPodStateSpec {
	t.Helper()
	if text == "" {
		return nil
	}
	var s PersistentPodStateSpec
	must.Succeed(t, json.Unmarshal([]byte(text), &s))
	return &s
}

func TestNormalize(t *testing.T) {
	const (
		stored = `{"requiredPersistentTopology":{"keys":["zone"],"nodeTopologyKeys":["zone"]},
			"preferredPersistentTopology":[
				{"weight":100,"preference":{"keys":["host"],"nodeTopologyKeys":["host"]}},
				{"weight":50,"preference":{"keys":["rack"],"nodeTopologyKeys":["rack"]}}]}`
		kruise = `{"requiredPersistentTopology":{"nodeTopologyKeys":["zone"]}}`
	)
	tests := []struct {
		name, old, written string
		required           []string
		preferred          [][]string
		rejected           bool
	}{
		{name: "a new object of v1alpha1",
			written:  `{"requiredPersistentTopology":{"nodeTopologyKeys":["zone","host"]}}`,
			required: []string{"zone", "host"}},
		{name: "a new object of v1beta1",
			written:   `{"preferredPersistentTopology":[{"weight":1,"preference":{"keys":["host"]}}]}`,
			preferred: [][]string{{"host"}}},
		{name: "both names, the same list",
			written:  `{"requiredPersistentTopology":{"keys":["zone"],"nodeTopologyKeys":["zone"]}}`,
			required: []string{"zone"}},
		{name: "both names, two lists",
			written:  `{"requiredPersistentTopology":{"keys":["zone"],"nodeTopologyKeys":["host"]}}`,
			rejected: true},
		{name: "a label twice", written: `{"requiredPersistentTopology":{"keys":["zone","zone"]}}`,
			required: []string{"zone"}},
		{name: "no label",
			written: `{"requiredPersistentTopology":{"keys":[]},
				"preferredPersistentTopology":[{"weight":1,"preference":{"nodeTopologyKeys":[]}}]}`},
		{name: "a client of v1alpha1 writes back what it read", old: stored,
			written: `{"requiredPersistentTopology":{"nodeTopologyKeys":["zone"]},"preferredPersistentTopology":[
				{"weight":100,"preference":{"nodeTopologyKeys":["host"]}},
				{"weight":50,"preference":{"nodeTopologyKeys":["rack"]}}]}`,
			required: []string{"zone"}, preferred: [][]string{{"host"}, {"rack"}}},
		{name: "an editor changes keys only", old: stored,
			written:  `{"requiredPersistentTopology":{"keys":["region"],"nodeTopologyKeys":["zone"]}}`,
			required: []string{"region"}},
		{name: "an editor changes nodeTopologyKeys only", old: stored,
			written:  `{"requiredPersistentTopology":{"keys":["zone"],"nodeTopologyKeys":["region"]}}`,
			required: []string{"region"}},
		{name: "an editor empties keys", old: stored,
			written: `{"requiredPersistentTopology":{"keys":[],"nodeTopologyKeys":["zone"]}}`},
		{name: "an editor changes both, to two lists", old: stored,
			written: `{"requiredPersistentTopology":{"keys":["region"],"nodeTopologyKeys":["host"]}}`, rejected: true},
		{name: "an editor changes both, to one list", old: stored,
			written:  `{"requiredPersistentTopology":{"keys":["region"],"nodeTopologyKeys":["region"]}}`,
			required: []string{"region"}},
		{name: "a patch changes keys and removes the other name", old: stored,
			written:  `{"requiredPersistentTopology":{"keys":["region"]}}`,
			required: []string{"region"}},
		{name: "a manifest changes to the other name and keeps the list", old: stored,
			written:  `{"requiredPersistentTopology":{"nodeTopologyKeys":["zone"]}}`,
			required: []string{"zone"}},
		{name: "an editor removes the first term and changes the second", old: stored,
			written: `{"preferredPersistentTopology":[
				{"weight":50,"preference":{"keys":["row"],"nodeTopologyKeys":["rack"]}}]}`,
			preferred: [][]string{{"row"}}},
		{name: "an editor makes the second term equal to the first", old: stored,
			written: `{"preferredPersistentTopology":[` +
				`{"weight":100,"preference":{"keys":["host"],"nodeTopologyKeys":["host"]}},
				{"weight":50,"preference":{"keys":["host"],"nodeTopologyKeys":["rack"]}}]}`,
			preferred: [][]string{{"host"}, {"host"}}},
		{name: "an object that Kruise stored, with one name", old: kruise,
			written:  `{"requiredPersistentTopology":{"keys":["host"],"nodeTopologyKeys":["zone"]}}`,
			required: []string{"host"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := spec(t, tt.written)
			err := got.Normalize(spec(t, tt.old))
			if tt.rejected {
				if err == nil {
					t.Fatalf("normalized to %+v, want an error", got)
				}
				return
			}
			must.Succeed(t, err)
			check(t, got, tt.required, tt.preferred)
		})
	}
}

// check compares a normalized spec with lists, under both names.
func check(t interface {
	Helper()
	Errorf(string, ...any)
}, s *PersistentPodStateSpec, required []string, preferred [][]string) {
	t.Helper()
	var keys, topologyKeys []string
	if r := s.RequiredPersistentTopology; r != nil {
		keys, topologyKeys = r.Keys, r.NodeTopologyKeys
	}
	if diff := cmp.Diff([][]string{required, required}, [][]string{keys, topologyKeys}); diff != "" {
		t.Errorf("required (-want +got):\n%s", diff)
	}
	var inBeta, inAlpha [][]string
	for _, p := range s.PreferredPersistentTopology {
		inBeta, inAlpha = append(inBeta, p.Preference.Keys), append(inAlpha, p.Preference.NodeTopologyKeys)
	}
	if diff := cmp.Diff([][][]string{preferred, preferred}, [][][]string{inBeta, inAlpha}); diff != "" {
		t.Errorf("preferred (-want +got):\n%s", diff)
	}
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
			if diff := cmp.Diff(&s, again); diff != "" {
				t.Errorf("written back (-read +stored):\n%s", diff)
			}
		}
	})
}
