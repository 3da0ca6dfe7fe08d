package v1beta1

import (
	"fmt"
	"slices"
)

// Labels are the node labels of a term, in whatever spelling they were given.
func (t NodeTopologyTerm) Labels() []string {
	if t.Keys != nil {
		return t.Keys
	}
	return t.NodeTopologyKeys
}

// Term is a list of node labels in both spellings.
func Term(labels ...string) NodeTopologyTerm {
	return NodeTopologyTerm{Keys: labels, NodeTopologyKeys: slices.Clone(labels)}
}

// Normalize gives every term both spellings of its list, each label once, and removes terms that name no label. old is
// the spec that is stored; nil for a new object.
//
// A stored term has both spellings, and most writers know only one. So where a term has one, that one is meant. Where it
// has two that differ, one of them is what was stored before, which its writer did not look at, and the other is meant.
// Where neither or both were stored before, nobody can know what is meant: an error.
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

// normalize is for the i-th term of a list.
func (t *NodeTopologyTerm) normalize(i int, old []NodeTopologyTerm) error {
	meant, ok := t.meant(i, old)
	if !ok {
		return fmt.Errorf("keys %q and nodeTopologyKeys %q are two names of one list and differ; give one of them, or both the same",
			t.Keys, t.NodeTopologyKeys)
	}
	*t = Term(distinct(meant)...)
	return nil
}

// meant is the list that a writer had in mind. The stored term in the same place is asked first, then all: a writer may
// have moved it.
func (t *NodeTopologyTerm) meant(i int, old []NodeTopologyTerm) ([]string, bool) {
	if t.Keys == nil || t.NodeTopologyKeys == nil || slices.Equal(t.Keys, t.NodeTopologyKeys) {
		return t.Labels(), true
	}
	if i < len(old) {
		if meant, ok := t.changed(old[i : i+1]); ok {
			return meant, true
		}
	}
	return t.changed(old)
}

// changed is the one list of the two that was not stored before.
func (t *NodeTopologyTerm) changed(old []NodeTopologyTerm) ([]string, bool) {
	stored := func(list []string) bool {
		return slices.ContainsFunc(old, func(o NodeTopologyTerm) bool { return slices.Equal(o.Labels(), list) })
	}
	switch keys, topologyKeys := stored(t.Keys), stored(t.NodeTopologyKeys); {
	case keys == topologyKeys:
		return nil, false
	case keys:
		return t.NodeTopologyKeys, true
	default:
		return t.Keys, true
	}
}

// distinct keeps the order.
func distinct(list []string) []string {
	var once []string
	for _, s := range list {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}
