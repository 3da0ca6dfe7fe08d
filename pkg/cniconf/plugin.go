package cniconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// Plugin is one plugin in the list of a configuration.
type Plugin struct {
	Type string
	// File is the path of the file with the entry of the plugin, or of the directory of the files
	// that have one plugin each. Pointer is the JSON Pointer (RFC 6901) of the entry in that file,
	// "" for the whole document.
	File    string
	Pointer string
	// IPAM is the IPAM plugin that this plugin calls. It is zero if none is known.
	IPAM    IPAM
	entry   []byte        // as libcni reads it
	flannel *flannelEntry // nil if the plugin is another one
	// PassesAnnotations reports whether the entry declares the capability with which the runtime
	// passes the annotations of pods to the plugin. AnnotationsPointer is its JSON Pointer, "" if
	// the plugin calls no IPAM plugin.
	PassesAnnotations  bool
	AnnotationsPointer string
	// Ambiguous is an error if the entry has keys that plugins read as one. It is not edited then.
	Ambiguous error
	// Multus does not assign addresses itself, but delegates to the plugins of other networks.
	// Follows are those networks, if they are in the entry of Multus, the default network of pods
	// first. Otherwise, ClusterNetwork is the reference in that entry: the name of an API object or
	// of a network, or the path of a file. Both are empty if the plugin is not Multus, and if its
	// entry cannot be decoded.
	Follows        []Delegate
	ClusterNetwork string
}

// IPAM is an IPAM plugin that a configuration names.
type IPAM struct {
	Type string
	// Pointer is the JSON Pointer of the type in Plugin.File. If Default is true, nothing is there
	// yet, and setting a type there changes the IPAM plugin.
	Pointer string `json:"-"`
	// Default reports whether the configuration names no IPAM plugin, and Type is the one that the
	// plugin uses then.
	Default bool `json:"-"`
	// DefaultWindow is the retention window in the ipam section, for pods whose annotations are not
	// passed to the plugin. It may be "".
	DefaultWindow string
	// DataDir is the directory of host-local's files in the ipam section. It may be "".
	DataDir string
}

// Delegate is a network, and its plugins.
type Delegate struct {
	Network  string
	Plugins  []Plugin
	ByMultus bool // Multus calls them
}

const (
	// HostLocal is the type of the IPAM plugin that leasehold replaces.
	HostLocal = "host-local"
	// Leasehold is the type of leasehold's plugin.
	Leasehold = "leasehold"

	typeFlannel = "flannel"

	annotations = "io.kubernetes.cri.pod-annotations" // the capability to get the annotations of pods
)

// entry has the fields of a plugin's entry that are needed to find its IPAM plugin. It is decoded
// as the plugins of containernetworking decode theirs: without regard to the case of keys.
type entry struct {
	Type           string
	Capabilities   map[string]bool
	Delegates      []json.RawMessage
	ClusterNetwork string
	IPAM           IPAM
}

// plugin describes one entry of a configuration's list of plugins, which libcni has accepted.
// pointer is the JSON Pointer of the entry in file. A field of an unexpected type is left empty and
// is not an error, because the plugin itself might never read it; json.Unmarshal decodes the other
// fields nevertheless.
func plugin(raw []byte, file, pointer string) Plugin {
	// As libcni passes it on: with sorted keys, and without any that is repeated, of which the last
	// counts. Both determine how it is decoded.
	if passed, err := libcni.InjectConf(&libcni.PluginConfig{Bytes: raw}, nil); err == nil {
		raw = passed.Bytes
	}
	var e entry
	_ = json.Unmarshal(raw, &e)
	p := Plugin{Type: e.Type, File: file, Pointer: pointer, PassesAnnotations: e.Capabilities[annotations],
		entry: raw}
	if isMultus(e.Type) {
		key, _ := p.key(raw, "delegates")
		p.follow(e, key)
		return p
	}
	p.IPAM = e.IPAM
	sectionKey, section := p.key(raw, "ipam")
	typeKey := "type"
	if e.Type == typeFlannel {
		p.flannel = &flannelEntry{}
		_ = json.Unmarshal(raw, p.flannel)
		value, found := p.flannel.IPAM[typeKey]
		if p.IPAM.Type, _ = value.(string); !found {
			p.IPAM.Type, p.IPAM.Default = HostLocal, true
		}
	} else {
		typeKey, _ = p.key(section, typeKey)
	}
	if p.IPAM.Type == "" {
		p.IPAM = IPAM{}
		return p
	}
	capabilitiesKey, _ := p.key(raw, "capabilities")
	p.IPAM.Pointer = pointer + "/" + sectionKey + "/" + typeKey
	p.AnnotationsPointer = pointer + "/" + capabilitiesKey + "/" + annotations
	return p
}

// stdin returns what the IPAM plugin of a network gets on standard input with each ADD, without
// what the container runtime adds: values of capabilities, and prevResult. It is not known whether
// a plugin passes its entry on as it is, unless it callsAny. stdin returns nil if flannel has not
// written the node's subnets yet.
func (p Plugin) stdin(network, cniVersion string) []byte {
	adds := map[string]any{"name": network}
	if cniVersion != "" {
		adds["cniVersion"] = cniVersion
	}
	if p.flannel != nil {
		if adds["ipam"] = p.flannel.section(); adds["ipam"] == nil {
			return nil
		}
	}
	conf, err := libcni.InjectConf(&libcni.PluginConfig{Bytes: p.entry}, adds)
	if err != nil {
		return nil
	}
	return conf.Bytes
}

// key returns how a key is written in an object, whose case encoding/json ignores, and its value.
// Without such a key it returns the key itself, and nil. If the object has several, it sets
// p.Ambiguous, because what counts then depends on the plugin.
func (p *Plugin) key(object []byte, key string) (written string, value []byte) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(object, &members)
	var all []string
	for name := range members {
		if strings.EqualFold(name, key) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return key, nil
	}
	if slices.Sort(all); len(all) > 1 {
		p.Ambiguous = fmt.Errorf("of the keys %s one has to go, because plugins ignore the case of keys",
			strings.Join(all, " and "))
	}
	return all[0], members[all[0]]
}

// callsAny reports whether a plugin is known to call whichever IPAM plugin its ipam section names,
// with that section as it is. Canal's, for example, resolves "usePodCidr" only for host-local, and
// Antrea's calls a host-local of its own.
func (p Plugin) callsAny() bool { return p.Type == typeFlannel || slices.Contains(delegating, p.Type) }

// isMultus reports whether a plugin type is Multus: the thin plugin, or the shim of the thick
// plugin.
func isMultus(kind string) bool { return kind == "multus" || kind == "multus-shim" }

// follow sets Follows or ClusterNetwork of a Multus plugin with the entry e, in which key has the
// delegates.
func (p *Plugin) follow(e entry, key string) {
	if len(e.Delegates) == 0 {
		p.ClusterNetwork = e.ClusterNetwork
	}
	for i, raw := range e.Delegates {
		d, ok := p.delegate(raw, fmt.Sprintf("%s/%s/%d", p.Pointer, key, i))
		if !ok {
			p.Follows = nil
			return
		}
		for i := range d.Plugins {
			d.Plugins[i].Ambiguous = cmp.Or(d.Plugins[i].Ambiguous, p.Ambiguous)
		}
		p.Follows = append(p.Follows, d)
	}
}

// delegate decodes a network in the entry of Multus, which is a single plugin or a list of plugins.
// It reports false if the network does not name its plugins. libcni decodes a list into a map,
// whose keys are exact.
func (p *Plugin) delegate(raw []byte, pointer string) (out Delegate, ok bool) {
	var single struct{ Name, Type string }
	if json.Unmarshal(raw, &single) != nil {
		return out, false
	}
	out.Network, out.ByMultus = single.Name, true
	if single.Type != "" {
		out.Plugins = []Plugin{plugin(raw, p.File, pointer)}
		return out, true
	}
	var list map[string]json.RawMessage
	var plugins []json.RawMessage
	_ = json.Unmarshal(raw, &list)
	_ = json.Unmarshal(list["plugins"], &plugins) // anything else names no plugins
	for i, inner := range plugins {
		out.Plugins = append(out.Plugins, plugin(inner, p.File, fmt.Sprintf("%s/plugins/%d", pointer, i)))
	}
	return out, len(plugins) > 0 && !slices.ContainsFunc(out.Plugins, func(p Plugin) bool { return p.Type == "" })
}
