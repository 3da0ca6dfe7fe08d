package v1beta1

import (
	"fmt"
	"slices"
)

// Labels returns the node labels of a term, under whichever name they were given.
func (t NodeTopologyTerm) Labels() []string {
	if t.Keys != nil {
		return t.Keys
	}
	return t.NodeTopologyKeys
}

// Term returns a term with the node labels under both names.
func Term(labels ...string) NodeTopologyTerm {
	return NodeTopologyTerm{Keys: labels, NodeTopologyKeys: slices.Clone(labels)}
}

// Normalize sets keys and nodeTopologyKeys of every term to the same list, without duplicates, and
// removes terms without labels. old is the stored spec, nil for a new object.
//
// A stored term has both lists, and most clients know only one of them. A term with one list means
// that one. If a term has two different lists and one of them is what was stored, the client did
// not know it and means the other. If neither or both were stored, the intent is unknown and
// Normalize returns an error.
func (s *PersistentPodStateSpec) Normalize(old *PersistentPodStateSpec) error {
	var required []NodeTopologyTerm
	var preferred []NodeTopologyTerm
	if old != nil {
		if old.RequiredPersistentTopology != nil {
			required = append(required, *old.RequiredPersistentTopology)
		}
		for _, p := range old.PreferredPersistentTopology {
			preferred = append(preferred, p.Preference)
		}
	}
	if t := s.RequiredPersistentTopology; t != nil {
		if err := t.normalize(0, required); err != nil {
			return fmt.Errorf("spec.requiredPersistentTopology: %w", err)
		}
		if len(t.Keys) == 0 {
			s.RequiredPersistentTopology = nil
		}
	}
	for i := range s.PreferredPersistentTopology {
		if err := s.PreferredPersistentTopology[i].Preference.normalize(i, preferred); err != nil {
			return fmt.Errorf("spec.preferredPersistentTopology[%d].preference: %w", i, err)
		}
	}
	s.PreferredPersistentTopology = slices.DeleteFunc(s.PreferredPersistentTopology,
		func(t PreferredTopologyTerm) bool { return len(t.Preference.Keys) == 0 })
	return nil
}

// normalize normalizes the i-th term of a list; old is the stored list. It compares with the stored
// term at the same index first, then with all of them, because the client may have moved the term.
func (t *NodeTopologyTerm) normalize(i int, old []NodeTopologyTerm) error {
	meant := t.Labels()
	if t.Keys != nil && t.NodeTopologyKeys != nil && !slices.Equal(t.Keys, t.NodeTopologyKeys) {
		meant = nil
		if i < len(old) {
			meant = t.changed(old[i : i+1])
		}
		if meant == nil {
			meant = t.changed(old)
		}
		if meant == nil {
			return fmt.Errorf("keys %q and nodeTopologyKeys %q differ; set one of them, or both to the same list",
				t.Keys, t.NodeTopologyKeys)
		}
	}
	*t = Term(distinct(meant)...)
	return nil
}

// changed returns the one list of the two, neither of which is nil, that was not stored before, nil
// if both or none was.
func (t *NodeTopologyTerm) changed(old []NodeTopologyTerm) []string {
	stored := func(list []string) bool {
		return slices.ContainsFunc(old, func(o NodeTopologyTerm) bool { return slices.Equal(o.Labels(), list) })
	}
	switch keys, topologyKeys := stored(t.Keys), stored(t.NodeTopologyKeys); {
	case keys == topologyKeys:
		return nil
	case keys:
		return t.NodeTopologyKeys
	default:
		return t.Keys
	}
}

// distinct returns the list without duplicates, in its order.
func distinct(list []string) []string {
	var once []string
	for _, s := range list {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}
