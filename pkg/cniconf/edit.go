package cniconf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// ErrNothingToChange is returned by WithLeasehold for a configuration that does not call
// host-local.
var ErrNothingToChange = errors.New("no plugin calls host-local")

// WithLeasehold returns the content of a configuration file with host-local replaced by leasehold
// in every place. If a plugin would call host-local because its entry names no IPAM plugin,
// leasehold is added there. Nothing else changes, neither layout nor order. name is the same as for
// parseText. If there is no host-local, the error is ErrNothingToChange. It is an error, too, if a
// plugin that calls host-local is not known to call other IPAM plugins.
func WithLeasehold(name string, content []byte) ([]byte, error) {
	f, err := parseText(name, content)
	if err != nil {
		return nil, err
	}
	changed, types := false, []string{}
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
		if content, err = set(content, p.IPAM.Pointer, hujson.String(Leasehold)); err != nil {
			return nil, err
		}
		changed = true
	}
	if !changed {
		return nil, fmt.Errorf("%w; the IPAM plugins are: %s", ErrNothingToChange, strings.Join(types, ", "))
	}
	return content, nil
}

// WithAnnotations returns the content of a configuration file with a capability added to each
// plugin that names an IPAM plugin: the capability with which the runtime passes the annotations of
// pods to the plugin. Nothing else changes. name is the same as for parseText.
func WithAnnotations(name string, content []byte) ([]byte, error) {
	f, err := parseText(name, content)
	if err != nil {
		return nil, err
	}
	for _, p := range f.Plugins {
		if p.IPAM.Type == "" || p.PassesAnnotations || p.File != f.Path {
			continue
		}
		if content, err = set(content, p.Pointer+"/capabilities/"+annotations, hujson.Bool(true)); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// WithoutLeasehold returns the content of a configuration file that calls host-local where text
// calls leasehold. What WithLeasehold and WithAnnotations have added is removed, as are chained
// entries of leasehold, whoever has written them; nothing else changes. Pods get the same from
// both: host-local ignores the keys of leasehold alone, and its files have all addresses that are
// in use. name is the same as for parseText. If the text cannot be changed without changing
// anything else, the result is an error.
func WithoutLeasehold(name string, text []byte) ([]byte, error) {
	f, err := parseText(name, text)
	if err != nil {
		return text, nil // no runtime loads an invalid configuration
	}
	for _, p := range slices.Backward(flatten(f.Plugins)) { // removing an entry moves those behind it
		switch {
		case p.Type == Leasehold:
			text, err = remove(text, p.Pointer)
		case p.IPAM.Type != Leasehold:
			continue
		case p.Type == typeFlannel: // host-local is what it calls if the configuration names none
			text, err = remove(text, p.IPAM.Pointer)
		default:
			text, err = set(text, p.IPAM.Pointer, hujson.String(HostLocal))
		}
		if err == nil && p.IPAM.Type == Leasehold && p.PassesAnnotations {
			text, err = remove(text, p.Pointer+"/capabilities/"+annotations)
		}
		if err != nil {
			return nil, fmt.Errorf("it names leasehold: %w", err)
		}
	}
	return text, nil
}

// parseText parses the content of a configuration file as the runtime would. name is the name of
// the file. Its extension determines whether the content is a list. parseText does not read the
// files of plugins that the list refers to.
func parseText(name string, content []byte) (File, error) {
	f, _ := parseFile(name, content)
	f.needPlugins()
	return f, f.Invalid
}

// NamesLeasehold reports whether a configuration names leasehold, as an IPAM plugin or as a plugin
// in the list.
func (f File) NamesLeasehold() bool {
	for _, p := range flatten(f.Plugins) {
		if p.Type == Leasehold || p.IPAM.Type == Leasehold {
			return true
		}
	}
	return false
}

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
// unchanged. Objects that are missing on the path of the pointer are added. set returns an error if
// there is another kind of value.
func set(text []byte, pointer string, to hujson.Literal) ([]byte, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	if at := root.Find(pointer); at != nil {
		at.Value = to
		return root.Pack(), nil
	}
	parent, key := cut(pointer)
	insert := hujson.ValueTrimmed(to)
	for root.Find(parent) == nil {
		object := &hujson.Object{}
		prepend(object, key, insert)
		parent, key = cut(parent)
		insert = object
	}
	object, ok := root.Find(parent).Value.(*hujson.Object)
	if !ok {
		return nil, fmt.Errorf("%s cannot be changed: %s is not an object", pointer, parent)
	}
	prepend(object, key, insert)
	return root.Pack(), nil
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

// remove returns the text without the member of an object, or the element of an array, at a JSON
// Pointer, and all other bytes unchanged, but for white space. An object of which it is the only
// member is removed with it.
func remove(text []byte, pointer string) ([]byte, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	at := root.Find(pointer)
	if at == nil {
		return nil, fmt.Errorf("%s cannot be changed: there is no such value", pointer)
	}
	parent, _ := cut(pointer)
	switch in := root.Find(parent).Value.(type) {
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
