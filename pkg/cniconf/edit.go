package cniconf

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// ErrNothingToChange is returned by WithLeasehold for a configuration that calls neither host-local
// nor leasehold.
var ErrNothingToChange = errors.New("no plugin calls host-local")

// What to write into the entry of a plugin by hand, where an edit would change more than that.
const (
	leaseholdLine   = `"ipam": {"type": "leasehold", ...}`
	hostLocalLine   = `"ipam": {"type": "host-local", ...}`
	annotationsLine = `"capabilities": {"` + annotations + `": true, ...}`
)

// WithLeasehold returns the content of a configuration file with host-local replaced by leasehold
// in every place. If a plugin would call host-local because its entry names no IPAM plugin,
// leasehold is added there. Nothing else changes, neither layout nor order, and WithoutLeasehold
// undoes it to the byte. If that is not possible, the error says what to write by hand. name is the
// same as for parseFile. If there is no host-local, the result is the content as it was where it
// calls leasehold, otherwise ErrNothingToChange. It is an error, too, if a plugin that calls
// host-local is not known to call other IPAM plugins.
func WithLeasehold(name string, content []byte) ([]byte, error) {
	f, err := parseText(name, content)
	if err != nil {
		return nil, err
	}
	var types []string
	var last Plugin
	changed, former := content, content
	for _, p := range flatten(f.Plugins) {
		if p.IPAM.Type != "" {
			types = append(types, p.IPAM.Type)
		}
		if p.IPAM.Type != HostLocal {
			continue
		}
		if !p.callsAny() {
			return nil, fmt.Errorf("%s may call no other IPAM plugin than host-local; install leasehold in "+
				"host-local's place instead", p.Type)
		}
		if changed, err = p.set(changed, p.IPAM.Pointer, hujson.String(Leasehold)); err != nil {
			return nil, p.byHand(leaseholdLine, err)
		}
		former, last = p.withoutAnnotations(former), p
	}
	if last.Type == "" && slices.Contains(types, Leasehold) {
		return content, nil
	}
	if last.Type == "" {
		return nil, fmt.Errorf("%w; the IPAM plugins are: %s", ErrNothingToChange, strings.Join(types, ", "))
	}
	former, err = WithoutLeasehold(name, former)
	undone, e := WithoutLeasehold(name, changed)
	if err = errors.Join(err, e); err != nil || !bytes.Equal(undone, former) {
		return nil, last.byHand(leaseholdLine, err)
	}
	return changed, nil
}

// WithAnnotations returns the content of a configuration file with a capability added to each
// plugin that names an IPAM plugin: the capability with which the runtime passes the annotations of
// pods to the plugin. Nothing else changes, and WithoutLeasehold undoes it. name and error are the
// same as for WithLeasehold. It is an error if there is no such plugin, as in an entry of Multus.
func WithAnnotations(name string, content []byte) ([]byte, error) {
	f, err := parseText(name, content)
	if err != nil {
		return nil, err
	}
	changed := content
	if !slices.ContainsFunc(f.Plugins, func(p Plugin) bool { return p.IPAM.Type != "" }) {
		return nil, errors.New("no entry of it names an IPAM plugin; Multus passes no annotations to its delegates")
	}
	for _, p := range f.Plugins {
		if p.IPAM.Type == "" || p.PassesAnnotations {
			continue
		}
		former := changed
		changed, err = p.set(former, p.AnnotationsPointer, hujson.Bool(true))
		if err != nil || !bytes.Equal(p.withoutAnnotations(changed), former) {
			return nil, p.byHand(annotationsLine, err)
		}
	}
	return changed, nil
}

// WithoutLeasehold returns the content of a configuration file that calls host-local where text
// calls leasehold. What WithLeasehold and WithAnnotations have added is removed, as are chained
// entries of leasehold, whoever has written them; nothing else changes. Pods get the same from
// both: host-local ignores the keys of leasehold alone, and its files have all addresses that are
// in use. name is the same as for parseFile. If the text cannot be changed without changing
// anything else, the result is an error.
func WithoutLeasehold(name string, text []byte) ([]byte, error) {
	f, err := parseText(name, text)
	if err != nil {
		return text, nil // no runtime loads an invalid configuration
	}
	changed := text
	for _, p := range slices.Backward(flatten(f.Plugins)) { // removing an entry moves those behind it
		switch {
		case p.Type == Leasehold:
			changed, err = remove(changed, p.Pointer)
		case p.IPAM.Type != Leasehold:
			continue
		case p.Ambiguous != nil:
			err = p.Ambiguous
		case p.Type == typeFlannel: // host-local is what it calls if the configuration names none
			changed, err = remove(changed, p.IPAM.Pointer)
		default:
			changed, err = p.set(changed, p.IPAM.Pointer, hujson.String(HostLocal))
		}
		if err != nil {
			return nil, fmt.Errorf("it names leasehold: %w", p.byHand(hostLocalLine, err))
		}
		if p.IPAM.Type == Leasehold {
			changed = p.withoutAnnotations(changed)
		}
	}
	if _, err = parseText(name, changed); err != nil {
		return nil, fmt.Errorf("it names leasehold, without which no runtime would load it (%w); remove the file", err)
	}
	return changed, nil
}

// byHand returns the error for an entry that is not edited, for the reason err: with what to write
// instead. Without a reason the edit could not be undone.
func (p Plugin) byHand(line string, err error) error {
	if err == nil {
		err = errors.New("leasectl uninstall could not undo the change")
	}
	return fmt.Errorf("%w; write %s in the entry of %s by hand", err, line, p.Type)
}

// parseText parses the content of a configuration file without the files of other plugins.
func parseText(name string, content []byte) (File, error) {
	f := parseFile(name, content, false)
	return f, f.Invalid
}

// NamesLeasehold reports whether a configuration names leasehold, as an IPAM plugin or as a plugin
// in the list.
func (f File) NamesLeasehold() bool {
	return slices.ContainsFunc(flatten(f.Plugins), Plugin.isOrCallsLeasehold)
}

func (p Plugin) isOrCallsLeasehold() bool { return p.Type == Leasehold || p.IPAM.Type == Leasehold }

// flatten returns the given plugins, and the plugins of the networks that they delegate to, at any
// depth.
func flatten(plugins []Plugin) (all []Plugin) {
	for _, p := range plugins {
		all = append(all, p)
		for _, d := range p.Follows {
			all = append(all, flatten(d.Plugins)...)
		}
	}
	return all
}

// set returns the text with the value at a JSON Pointer replaced, or added, and all other bytes
// unchanged. Objects of the entry that are missing on the path of the pointer are added. set
// returns an error if there is another kind of value, or if the entry has keys that mean the same.
func (p Plugin) set(text []byte, pointer string, to hujson.Literal) ([]byte, error) {
	root, err := hujson.Parse(text)
	if err = errors.Join(err, p.Ambiguous); err != nil {
		return nil, err
	}
	if at := find(&root, pointer); at != nil {
		at.Value = to
		return root.Pack(), nil
	}
	parent, key := cut(pointer)
	insert := hujson.ValueTrimmed(to)
	for find(&root, parent) == nil {
		object := &hujson.Object{}
		prepend(object, key, insert)
		parent, key = cut(parent)
		insert = object
	}
	object, ok := find(&root, parent).Value.(*hujson.Object)
	if !ok {
		return nil, fmt.Errorf("%s cannot be changed: %s is not an object", pointer, parent)
	}
	prepend(object, key, insert)
	return root.Pack(), nil
}

// find returns the value at a JSON Pointer without escapes, nil if there is none. Of several
// members with one name it takes the last, which counts for libcni.
func find(in *hujson.Value, pointer string) *hujson.Value {
	if pointer == "" {
		return in
	}
	parent, key := cut(pointer)
	if in = find(in, parent); in == nil {
		return nil
	}
	switch in := in.Value.(type) {
	case *hujson.Object:
		for i := range slices.Backward(in.Members) {
			if in.Members[i].Name.Value.(hujson.Literal).String() == key {
				return &in.Members[i].Value
			}
		}
	case *hujson.Array:
		if i, err := strconv.Atoi(key); err == nil && i < len(in.Elements) {
			return &in.Elements[i]
		}
	}
	return nil
}

// prepend adds a member to an object as the first one. It gets the same white space as the one that
// was first.
func prepend(object *hujson.Object, key string, value hujson.ValueTrimmed) {
	m := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String(key)},
		Value: hujson.Value{BeforeExtra: hujson.Extra(" "), Value: value}}
	if len(object.Members) > 0 {
		m.Name.BeforeExtra = object.Members[0].Name.BeforeExtra
	}
	object.Members = slices.Insert(object.Members, 0, m)
}

// withoutAnnotations returns the text without the capability to get the annotations of pods, if
// WithAnnotations has added it, which its place and layout show.
func (p Plugin) withoutAnnotations(text []byte) []byte {
	root, err := hujson.Parse(text)
	if err != nil || p.Ambiguous != nil {
		return text
	}
	parent, _ := cut(p.AnnotationsPointer)
	capabilities, value := find(&root, parent), find(&root, p.AnnotationsPointer)
	if value == nil || value != &capabilities.Value.(*hujson.Object).Members[0].Value || value.String() != " true" {
		return text
	}
	text, _ = remove(text, p.AnnotationsPointer) // it has been found
	return text
}

// remove returns the text without the member of an object, or the element of an array, at a JSON
// Pointer, and all other bytes unchanged, but for white space. An object of which it is the only
// member is removed with it.
func remove(text []byte, pointer string) ([]byte, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	at := find(&root, pointer)
	if at == nil || pointer == "" {
		return nil, fmt.Errorf("%s cannot be removed", cmp.Or(pointer, "the whole file"))
	}
	parent, _ := cut(pointer)
	switch in := find(&root, parent).Value.(type) {
	case *hujson.Object:
		if len(in.Members) == 1 && parent != "" {
			return remove(text, parent)
		}
		i := slices.IndexFunc(in.Members, func(m hujson.ObjectMember) bool {
			return m.Value.StartOffset == at.StartOffset
		})
		in.Members = slices.Delete(in.Members, i, i+1)
		if i > 0 && i == len(in.Members) {
			in.Members[i-1].Value.AfterExtra = nil // white space there would mean a comma
		}
	case *hujson.Array:
		i := slices.IndexFunc(in.Elements, func(v hujson.Value) bool { return v.StartOffset == at.StartOffset })
		in.Elements = slices.Delete(in.Elements, i, i+1)
		if i > 0 && i == len(in.Elements) {
			in.Elements[i-1].AfterExtra = nil // as above
		}
	}
	return root.Pack(), nil
}

// cut returns a JSON Pointer without its last part, and that part.
func cut(pointer string) (parent, key string) {
	i := strings.LastIndex(pointer, "/")
	return pointer[:i], pointer[i+1:]
}
