package cniconf

import (
	"encoding/json"
	"fmt"
)

// Plugin is one plugin of a configuration.
type Plugin struct {
	Type string
	// File is the file that has the plugin's entry, and Pointer where it is in that file's JSON
	// (RFC 6901), "" for the whole.
	File    string
	Pointer string
	// IPAM is the IPAM plugin that this plugin calls. Its zero value means that the entry names
	// none.
	IPAM IPAM
	// PassesAnnotations reports whether the entry declares the capability with which the runtime
	// passes the annotations of the pod to it.
	PassesAnnotations bool
	// Follows are the networks that Multus calls instead of doing the work itself, where its entry
	// has them, and ClusterNetwork is what it names instead: an object, a network or a file.
	// Unfollowed is why neither is known, "" if one is, or if the plugin is not Multus.
	Follows        []Delegate
	ClusterNetwork string
	Unfollowed     string
}

// IPAM is an IPAM plugin that a configuration names.
type IPAM struct {
	Type string
	// Pointer is where the type is in the JSON of the plugin's file, or has to be to change it.
	Pointer string
	// Default reports whether the file does not name it, because the plugin has a default.
	Default bool
	// DefaultWindow is what the ipam section says for pods whose annotations are not passed; may be
	// empty.
	DefaultWindow string
	// DataDir is the directory of host-local's files in the ipam section; may be empty.
	DataDir string
}

// Delegate is a network that Multus calls: the plugins in its own entry.
type Delegate struct {
	Network string
	Plugins []Plugin
}

const (
	// HostLocal is the type of the IPAM plugin whose place leasehold takes.
	HostLocal = "host-local"
	// Leasehold is the type of leasehold's plugin.
	Leasehold = "leasehold"

	typeFlannel = "flannel"

	annotations = "io.kubernetes.cri.pod-annotations" // the capability
)

// entry is what concerns IPAM in the entry of a plugin.
type entry struct {
	Name           string            `json:"name"`
	Type           string            `json:"type"`
	Capabilities   map[string]bool   `json:"capabilities"`
	IPAM           ipamEntry         `json:"ipam"`
	Plugins        []json.RawMessage `json:"plugins"`
	Delegates      []json.RawMessage `json:"delegates"`
	ClusterNetwork string            `json:"clusterNetwork"`
}

type ipamEntry struct {
	Type          string `json:"type"`
	DefaultWindow string `json:"defaultWindow"`
	DataDir       string `json:"dataDir"`
}

// plugin describes one entry of a configuration's list of plugins, which libcni has accepted.
// pointer is the JSON Pointer of the entry in file. A field of an unexpected type is left empty and
// is not an error, because the plugin itself might never read it; json.Unmarshal decodes the other
// fields nevertheless.
func plugin(raw []byte, file, pointer string) Plugin {
	var e entry
	decodeErr := json.Unmarshal(raw, &e)
	p := Plugin{Type: e.Type, File: file, Pointer: pointer, PassesAnnotations: e.Capabilities[annotations]}
	switch {
	case isMultus(e.Type):
		p.follow(e, decodeErr)
	case e.IPAM.Type != "":
		p.IPAM = IPAM{Type: e.IPAM.Type, Pointer: pointer + "/ipam/type", DefaultWindow: e.IPAM.DefaultWindow,
			DataDir: e.IPAM.DataDir}
	case e.Type == typeFlannel: // delegates to host-local if the configuration names no IPAM plugin
		p.IPAM = IPAM{Type: HostLocal, Pointer: pointer + "/ipam/type", Default: true}
	}
	return p
}

func pointerTo(format string, i int) string {
	if format == "" {
		return ""
	}
	return fmt.Sprintf(format, i)
}

// isMultus reports whether a plugin is Multus, in its thin form or its thick one.
func isMultus(kind string) bool { return kind == "multus" || kind == "multus-shim" }

// follow reads the networks that Multus calls, where its entry contains them. The first one is the
// network of the pod's own interface.
func (p *Plugin) follow(e entry, err error) {
	switch {
	case err != nil:
		p.Unfollowed = "its entry cannot be decoded: " + err.Error()
		return
	case len(e.Delegates) == 0 && e.ClusterNetwork != "":
		p.ClusterNetwork = e.ClusterNetwork
		return
	case len(e.Delegates) == 0:
		p.Unfollowed = "its entry has no delegates"
		return
	}
	for i, raw := range e.Delegates {
		d, err := delegate(raw, p.File, fmt.Sprintf("%s/delegates/%d", p.Pointer, i))
		if err != nil {
			p.Follows, p.Unfollowed = nil, err.Error()
			return
		}
		p.Follows = append(p.Follows, d)
	}
}

// delegate returns a network that Multus calls: a single plugin or a list.
func delegate(raw []byte, file, pointer string) (Delegate, error) {
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return Delegate{}, fmt.Errorf("%s cannot be decoded: %w", pointer, err)
	}
	out := Delegate{Network: e.Name}
	if len(e.Plugins) == 0 {
		out.Plugins = []Plugin{plugin(raw, file, pointer)}
	}
	for i, inner := range e.Plugins {
		out.Plugins = append(out.Plugins, plugin(inner, file, fmt.Sprintf("%s/plugins/%d", pointer, i)))
	}
	for _, p := range out.Plugins {
		if p.Type == "" {
			return Delegate{}, fmt.Errorf("%s names no plugin", pointer)
		}
	}
	return out, nil
}
