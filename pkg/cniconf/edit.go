package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNothingToChange is returned by WithLeasehold for a configuration that does not call
// host-local.
var ErrNothingToChange = errors.New("no plugin calls host-local")

// BackupSuffix is added to the name of a configuration file that leasectl changes, for the file
// with the former content. No runtime loads files with that extension.
const BackupSuffix = ".leasehold-backup"

// WithLeasehold returns the content of a configuration file with host-local replaced by leasehold
// in every place. If a plugin would call host-local because its entry names no IPAM plugin,
// leasehold is added there. Nothing else changes, neither layout nor order. name is the same as for
// Parse. If there is no host-local, the error is ErrNothingToChange. It is an error, too, if a
// plugin that calls host-local is not known to call other IPAM plugins.
func WithLeasehold(name string, content []byte) ([]byte, error) {
	f, err := Parse(name, content)
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
// pods to the plugin. Nothing else changes. name is the same as for Parse.
func WithAnnotations(name string, content []byte) ([]byte, error) {
	f, err := Parse(name, content)
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

// Parse parses the content of a configuration file as the runtime would. name is the name of the
// file. Its extension determines whether the content is a list. Parse does not read the files of
// plugins that the list refers to.
func Parse(name string, content []byte) (File, error) {
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
	places := map[string]place{}
	if err := scan(json.NewDecoder(bytes.NewReader(text)), text, "", places); err != nil {
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

// remove returns the text without the element of an array at a JSON Pointer, and all other bytes
// unchanged, but for white space.
func remove(text []byte, pointer string) ([]byte, error) {
	places := map[string]place{}
	if err := scan(json.NewDecoder(bytes.NewReader(text)), text, "", places); err != nil {
		return nil, err
	}
	at, ok := places[pointer]
	if !ok {
		return nil, fmt.Errorf("there is no value at %s", pointer)
	}
	next := bytes.TrimLeft(text[at.end:], " \t\r\n")
	if bytes.HasPrefix(next, []byte(",")) {
		at.end = len(text) - len(bytes.TrimLeft(next[1:], " \t\r\n"))
	} else {
		at.start = len(bytes.TrimRight(text[:at.start], ", \t\r\n"))
	}
	return replaced(text, at.start, at.end, ""), nil
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

// place is the position of a value in a text, from its first byte to the one behind it.
type place struct {
	start, end int
	object     bool
}

// scan reads the next value from d, and records the places of that value and of all values in it,
// by JSON Pointer. Arrays have no place, but their elements do.
func scan(d *json.Decoder, text []byte, pointer string, places map[string]place) error {
	before := int(d.InputOffset())
	token, err := d.Token()
	if err != nil {
		return err
	}
	start := before + len(text[before:]) - len(bytes.TrimLeft(text[before:], " \t\r\n:,"))
	delim, ok := token.(json.Delim)
	if !ok {
		places[pointer] = place{start: start, end: int(d.InputOffset())}
		return nil
	}
	for i := 0; d.More(); i++ {
		key := fmt.Sprint(i)
		if delim == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key = strings.NewReplacer("~", "~0", "/", "~1").Replace(token.(string))
		}
		if err := scan(d, text, pointer+"/"+key, places); err != nil {
			return err
		}
	}
	_, err = d.Token()
	if delim == '{' {
		places[pointer] = place{start: start, end: int(d.InputOffset()), object: true}
	}
	return err
}
