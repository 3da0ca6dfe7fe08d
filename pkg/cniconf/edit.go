package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		if content, err = set(content, p.IPAM.Pointer, Leasehold); err != nil {
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
		if content, err = set(content, p.Pointer+"/capabilities/"+annotations, true); err != nil {
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
			text, err = set(text, p.IPAM.Pointer, HostLocal)
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
// unchanged. value is a string or a boolean. Objects that are missing on the path of the pointer
// are added. set returns an error if there is another kind of value.
func set(text []byte, pointer string, value any) ([]byte, error) {
	places, err := placesIn(text)
	if err != nil {
		return nil, err
	}
	if at, ok := places[pointer]; ok && !at.object {
		return replaced(text, at.start, at.end, quote(value)), nil
	}
	insert := quote(value)
	for missing := pointer; ; {
		i := strings.LastIndex(missing, "/")
		if i < 0 {
			return nil, fmt.Errorf("the configuration has no object in which %s could be set", pointer)
		}
		parent, key := missing[:i], missing[i+1:]
		at, ok := places[parent]
		if ok && at.object {
			return replaced(text, at.start+1, at.start+1, member(text[at.start+1:], quote(key)+": "+insert)), nil
		}
		if ok {
			return nil, fmt.Errorf("%s cannot be changed: %s is not an object", pointer, parent)
		}
		insert, missing = "{"+quote(key)+": "+insert+"}", parent
	}
}

// remove returns the text without the member of an object, or the element of an array, at a JSON
// Pointer, and all other bytes unchanged, but for white space. An object of which it is the only
// member is removed with it.
func remove(text []byte, pointer string) ([]byte, error) {
	places, err := placesIn(text)
	if err != nil {
		return nil, err
	}
	at, ok := places[pointer]
	if !ok {
		return nil, fmt.Errorf("%s cannot be changed: there is no such value", pointer)
	}
	if parent := places[pointer[:strings.LastIndex(pointer, "/")]]; parent.members == 1 {
		at = parent
	}
	before := bytes.TrimRight(text[:at.key], " \t\r\n")
	if bytes.HasSuffix(before, []byte(",")) {
		return replaced(text, len(bytes.TrimRight(before, ", \t\r\n")), at.end, ""), nil
	}
	next := bytes.TrimLeft(text[at.end:], ", \t\r\n")
	return replaced(text, at.key, len(text)-len(next), ""), nil
}

// member returns the bytes to insert after the opening brace of an object, so that the object has
// text as its first member. rest is what follows the brace. The new member gets the same white
// space as the member that was first, and a comma unless the object is empty.
func member(rest []byte, text string) string {
	next := bytes.TrimLeft(rest, " \t\r\n")
	if bytes.HasPrefix(next, []byte("}")) {
		return text
	}
	return string(rest[:len(rest)-len(next)]) + text + ","
}

func quote(value any) string {
	b, _ := json.Marshal(value) // a string or a boolean can always be encoded
	return string(b)
}

// replaced returns a copy of text in which the bytes from..to are replaced.
func replaced(text []byte, from, to int, by string) []byte {
	return append(append(append([]byte{}, text[:from]...), by...), text[to:]...)
}

// place is the position of a value in a text, from its first byte to the one behind it. key is
// where the key of a member begins; of an element of an array it is start.
type place struct {
	key, start, end int
	object          bool
	members         int // of an object
}

// placesIn returns the places of all values in a text, by JSON Pointer. Arrays have no place, but
// their elements do.
func placesIn(text []byte) (map[string]place, error) {
	places := map[string]place{}
	d := json.NewDecoder(bytes.NewReader(text))
	return places, scan(d, text, "", 0, places)
}

// scan reads the next value from d, whose key begins at key, and records the places of that value
// and of all values in it.
func scan(d *json.Decoder, text []byte, pointer string, key int, places map[string]place) error {
	at := place{key: key, start: nextToken(d, text)}
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	for ; ok && d.More(); at.members++ {
		key, name := nextToken(d, text), fmt.Sprint(at.members)
		if delim == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name = strings.NewReplacer("~", "~0", "/", "~1").Replace(token.(string))
		}
		if err := scan(d, text, pointer+"/"+name, key, places); err != nil {
			return err
		}
	}
	if ok {
		_, err = d.Token()
	}
	if at.end, at.object = int(d.InputOffset()), ok; delim != '[' {
		places[pointer] = at
	}
	return err
}

// nextToken returns where the next token of d begins in its text.
func nextToken(d *json.Decoder, text []byte) int {
	return len(text) - len(bytes.TrimLeft(text[d.InputOffset():], " \t\r\n:,"))
}
