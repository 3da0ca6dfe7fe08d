package persistentpodstate

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/json"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// The states of pods that the manager keeps of a PersistentPodState, at most. They have at most
// maxStateText bytes of JSON, and maxStateBytes compressed: 1,500 pods with the labels of a usual
// node.
const (
	maxStates     = 2000
	maxStateText  = 384 << 10
	maxStateBytes = 24 << 10
)

// stored is what the informer keeps of a PersistentPodState. Kruise's CRD limits none of its parts,
// so users can make an object of any of them: what is beyond the limits of this package is left
// out. The states of pods are compressed, because those of a workload are much alike.
type stored struct {
	object pps.PersistentPodState // without the states of pods; not to be modified
	states []byte                 // compressed
	nodes  []uint32               // hashes of the names of the nodes in states, sorted
	isCut  bool                   // names or states were left out
}

// storedOf returns the stored form of a PersistentPodState, without the metadata of others.
func storedOf(all *pps.PersistentPodState) *stored {
	s := &stored{object: pps.PersistentPodState{ObjectMeta: control.Identity(&all.ObjectMeta)}}
	if isGenerated(all) {
		s.object.Labels = map[string]string{labelGenerated: generatedValue}
	}
	_, ref := ownerTarget(all)
	if size := len(ref.APIVersion + ref.Kind + ref.Name + string(ref.UID)); ref.Name != "" && size <= maxNameBytes {
		s.object.OwnerReferences = []metav1.OwnerReference{ref}
	}
	s.object.Spec, s.isCut = limitSpec(&all.Spec)
	s.object.Status.ObservedGeneration = all.Status.ObservedGeneration
	s.object.Status.TargetUID = kube.Short(all.Status.TargetUID, kube.MaxUID)
	states, isCut := limitStates(&s.object.Spec, all.Status.PodStates)
	s.states, s.isCut = pack(states), s.isCut || isCut
	for _, state := range states {
		s.nodes = append(s.nodes, hashOf(state.NodeName))
	}
	slices.Sort(s.nodes)
	s.nodes = slices.Clone(slices.Compact(s.nodes))
	return s
}

// Object returns the PersistentPodState. Its spec must not be modified.
func (s *stored) Object() *pps.PersistentPodState {
	o := s.object
	o.Status.PodStates = unpack[pps.PodState](s.states)
	return &o
}

// objectOf returns the PersistentPodState with the state of one pod only. It does not decode the
// others.
func (s *stored) objectOf(pod string) *pps.PersistentPodState {
	o := s.object
	if raw, found := unpack[json.RawMessage](s.states)[pod]; found {
		var state pps.PodState
		_ = json.Unmarshal(raw, &state)
		o.Status.PodStates = map[string]pps.PodState{pod: state}
	}
	return &o
}

// hasNode reports whether a state has a node, or one whose name has the same hash.
func (s *stored) hasNode(name string) bool {
	_, found := slices.BinarySearch(s.nodes, hashOf(name))
	return found
}

var seed = maphash.MakeSeed()

func hashOf(text string) uint32 { return uint32(maphash.String(seed, text)) }

// limitSpec returns a spec with the first maxNames names of labels and annotations, and
// maxNameBytes of their text. isCut reports whether others are left out. A text of the target that
// is longer than any is omitted, and the object has no effect.
func limitSpec(all *pps.PersistentPodStateSpec) (s pps.PersistentPodStateSpec, isCut bool) {
	s = *all
	t := &s.TargetRef
	t.APIVersion, t.Kind = kube.Short(t.APIVersion, kube.MaxNote), kube.Short(t.Kind, kube.MaxName)
	t.Name = kube.Short(t.Name, kube.MaxName)
	s.PersistentPodStateRetentionPolicy = pps.RetentionPolicy(kube.Short(string(s.PersistentPodStateRetentionPolicy),
		kube.MaxName))
	if isSmall(&s) {
		return s, false
	}
	names, left := maxNames, maxNameBytes
	take := func(list []string) []string {
		i := 0
		for ; i < len(list) && names > 0 && len(list[i]) <= left; i++ {
			names, left = names-1, left-len(list[i])
		}
		return slices.Clone(list[:i])
	}
	s.PreferredPersistentTopology = s.PreferredPersistentTopology[:min(len(s.PreferredPersistentTopology), maxNames)]
	s = *s.DeepCopy()
	for _, t := range termsOf(&s) {
		*t = pps.Term(take(t.Labels())...)
	}
	s.PersistentPodAnnotations = slices.Clone(s.PersistentPodAnnotations[:len(take(annotationsOf(&s)))])
	return s, true
}

// isSmall reports whether the lists of a spec are within the limits. It counts both spellings of a
// list of labels.
func isSmall(s *pps.PersistentPodStateSpec) bool {
	lists := [][]string{annotationsOf(s)}
	for _, t := range termsOf(s) {
		lists = append(lists, t.Keys, t.NodeTopologyKeys)
	}
	names := slices.Concat(lists...)
	return validateSize(s) == nil && len(names) <= 2*maxNames && len(strings.Join(names, "")) <= 2*maxNameBytes &&
		len(lists) <= 2*maxNames
}

// limitStates returns the states of the first pods that the manager keeps (maxStates), each with
// the labels and annotations that the spec names. isCut reports whether it leaves out others, or
// annotations of a pod with more than maxRecorded bytes.
func limitStates(spec *pps.PersistentPodStateSpec, all map[string]pps.PodState) (states map[string]pps.PodState,
	isCut bool) {
	// By their length first, so that the ordinals are in their order.
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	labels, annotations := labelsOf(spec), annotationsOf(spec)
	states = map[string]pps.PodState{}
	text := 0
	for i, name := range names {
		state := all[name]
		state.NodeName = kube.Short(state.NodeName, kube.MaxName)
		state.NodeTopologyLabels = control.Pick(state.NodeTopologyLabels, labels...)
		state.Annotations = control.Pick(state.Annotations, annotations...)
		if bytesIn(state.NodeTopologyLabels) > 2*maxNameBytes {
			state.NodeTopologyLabels, isCut = nil, true
		}
		if bytesIn(state.Annotations) > maxRecorded {
			state.Annotations, isCut = nil, true
		}
		text += len(name) + len(state.NodeName) + bytesIn(state.NodeTopologyLabels) + bytesIn(state.Annotations)
		if i == maxStates || text > maxStateText || len(name) > kube.MaxName {
			isCut = true
			break
		}
		states[name] = state
	}
	for size := len(pack(states)); size > maxStateBytes; size = len(pack(states)) {
		isCut = true
		first := min(len(states)-1, len(states)*maxStateBytes/size)
		for _, name := range names[first:len(states)] {
			delete(states, name)
		}
	}
	return states, isCut
}

// pack returns states in a compressed form.
func pack(states map[string]pps.PodState) []byte {
	if len(states) == 0 {
		return nil
	}
	var b bytes.Buffer
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	w.Reset(&b)
	_ = json.NewEncoder(w).Encode(states) // texts can be encoded, and a buffer be written
	_ = w.Close()
	return slices.Clone(b.Bytes())
}

// unpack returns what pack has compressed. A state may be a json.RawMessage, which is not decoded.
func unpack[S any](packed []byte) (states map[string]S) {
	_ = json.NewDecoder(flate.NewReader(bytes.NewReader(packed))).Decode(&states)
	return states
}

// writers are those of pack. Each has hundreds of kilobytes.
var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is valid
	return w
}}
