package inspect

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// world is the network namespaces of a node as a test sets them.
type world map[string][]string

// newHistory returns a history whose clock advances by a second with each reading.
func newHistory() *AddressHistory {
	now := time.Unix(0, 0)
	return NewAddressHistory(func() time.Time { now = now.Add(time.Second); return now })
}

// see has the history look at a world once.
func (h *AddressHistory) see(w world, unread ...string) {
	names := slices.Sorted(maps.Keys(w))
	h.observe([]string{"/node1"}, func(string) []string { return names },
		func(sandbox string) (found []netip.Addr, err error) {
			if slices.Contains(unread, sandbox) {
				return nil, errors.New("too many open files")
			}
			if w[sandbox] == nil {
				return nil, fs.ErrNotExist
			}
			for _, a := range w[sandbox] {
				found = append(found, netip.MustParseAddr(a))
			}
			return found, nil
		})
}

// A history in which each address has one holder and a retained pod returns to its address is
// accepted; a duplicate and a lost hold are not.
func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name  string
		looks []world
		pods  map[string]string
		want  []string
	}{
		{"one after the other", []world{{"a": {"10.0.0.2"}}, {"a": nil, "b": {"10.0.0.2"}}, {"b": {"10.0.0.2"}}},
			nil, nil},
		{"away for a look", []world{{"a": {"10.0.0.2"}}, {}, {"b": {"10.0.0.2"}}}, nil, nil},
		{"in both of one look", []world{{"a": {"10.0.0.2"}}, {"a": {"10.0.0.2"}, "b": {"10.0.0.2"}}}, nil, nil},
		{"in both of two looks", []world{{"a": {"10.0.0.2"}}, {"a": {"10.0.0.2"}, "b": {"10.0.0.2"}},
			{"a": {"10.0.0.2"}, "b": {"10.0.0.2"}}, {"b": {"10.0.0.2"}}}, nil, []string{"10.0.0.2"}},
		{"the first has it again", []world{{"a": {"10.0.0.2"}}, {"a": {"10.0.0.3"}, "b": {"10.0.0.2"}},
			{"b": {"10.0.0.2"}}, {"a": {"10.0.0.2"}, "b": {"10.0.0.2"}},
			{"a": {"10.0.0.2"}, "b": {"10.0.0.2"}}, {}}, nil,
			[]string{"10.0.0.2"}},
		{"the pod returns", []world{{"a": {"10.0.0.2", "fd00::2"}}, {}, {"b": {"10.0.0.2", "fd00::2"}}},
			map[string]string{"a": "ns/kept-0", "b": "ns/kept-0"}, nil},
		{"the pod has another address", []world{{"a": {"10.0.0.2", "fd00::2"}}, {}, {"b": {"10.0.0.2", "fd00::3"}}},
			map[string]string{"a": "ns/kept-0", "b": "ns/kept-0"}, []string{"ns/kept-0 IPv6"}},
		{"a pod without retention", []world{{"a": {"10.0.0.2"}}, {}, {"b": {"10.0.0.3"}}},
			map[string]string{"a": "ns/other-0", "b": "ns/other-0"}, nil},
	} {
		h := newHistory()
		for _, w := range c.looks {
			h.see(w)
		}
		maps.Copy(h.pods, c.pods)
		got := Accepted(h.Observations(), func(pod string) bool { return pod == "ns/kept-0" })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: rejected %q, want %q: %+v", c.name, got, c.want, h.Observations())
		}
	}
}

// What cannot be read has not lost its addresses: with another sandbox that has one, it is a
// duplicate.
func TestUnreadNamespace(t *testing.T) {
	h := newHistory()
	h.see(world{"a": {"10.0.0.2"}})
	h.see(world{"a": {"10.0.0.2"}, "b": {"10.0.0.2"}}, "a")
	h.see(world{"a": {"10.0.0.2"}, "b": {"10.0.0.2"}})
	h.see(world{})
	if got := Accepted(h.Observations(), func(string) bool { return false }); !slices.Equal(got, []string{"10.0.0.2"}) {
		t.Errorf("rejected %q: %+v", got, h.Observations())
	}
	if r := h.Resolution(); r < 4*time.Second || r > 20*time.Second {
		t.Errorf("the resolution is %s", r)
	}
}
