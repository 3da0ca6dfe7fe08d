package cniconf

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// extensions are the extensions of the files that container runtimes read as configurations.
var extensions = []string{".conf", ".conflist", ".json"}

// Rules determine which of the configurations in a directory a container runtime loads. The zero
// value is the default of containerd.
type Rules struct {
	// MaxFiles is the number of files that are loaded (max_conf_num of containerd). 0 means 1, and
	// a negative number means all.
	MaxFiles int
	// SkipInvalid reports whether the runtime skips invalid files, as CRI-O does. Otherwise an
	// invalid file prevents the runtime from loading any, as with containerd.
	SkipInvalid bool
}

// Conf is what is known of a directory of configurations.
type Conf struct {
	Dir string
	// Files are all configurations, in the order in which the runtime reads them. Some of them may
	// not be loaded.
	Files []File
	// Loaded are those that the runtime loads. It is empty if the runtime loads none, and if it
	// is not known what the runtime loads.
	Loaded []File
	// Rejected is the invalid configuration that prevents the runtime from loading any, nil if
	// there is none.
	Rejected *File
	// Unread is the error because of which it is not known what the runtime loads, nil if it is
	// known.
	Unread error
}

// File is one configuration file.
type File struct {
	Path    string
	Network string   // "name"; may be empty
	Plugins []Plugin // in the order of their calls in an ADD

	cniVersion string
	// Changed is when the file was last written, replaced, renamed or had its mode changed.
	Changed time.Time
	// Invalid is why no runtime can use the file, nil if the file is valid.
	Invalid error
	// Unread is why this process could not read the file, nil if it could. A runtime with other
	// permissions may be able to read it.
	Unread error

	content []byte
}

// Load reads the configurations in dir. If dir does not exist, the result has no Files.
func Load(dir string, rules Rules) Conf {
	c := Conf{Dir: dir}
	paths, err := libcni.ConfFiles(dir, extensions) // sorted by bytes
	if err != nil && !files.IsMissing(err) {
		c.Unread = fmt.Errorf("reading the directory of configurations: %w", err)
		return c
	}
	for _, path := range paths {
		c.Files = append(c.Files, readFile(path))
	}
	c.choose(rules)
	return c
}

// choose sets Loaded, and Rejected or Unread where they apply.
func (c *Conf) choose(rules Rules) {
	limit := max(rules.MaxFiles, 1)
	if rules.MaxFiles < 0 {
		limit = len(c.Files)
	}
	for _, f := range c.Files {
		switch {
		case len(c.Loaded) == limit:
			return
		case f.Unread != nil: // not known whether the runtime loads this file or the next ones
			c.Loaded, c.Unread = nil, f.Unread
			return
		case f.Invalid == nil:
			c.Loaded = append(c.Loaded, f)
		case !rules.SkipInvalid:
			c.Loaded, c.Rejected = nil, &f
			return
		}
	}
}

// readFile reads and parses one configuration file. Errors are in the result.
func readFile(path string) File {
	content, changed, err := files.ReadLinked(path)
	switch {
	case files.IsMissing(err):
		return File{Path: path,
			Invalid: fmt.Errorf("%s is a link to a file that does not exist, or was removed", path)}
	case err != nil:
		return File{Path: path, Unread: fmt.Errorf("reading a configuration: %w", err)}
	}
	f := parseFile(path, content, true)
	f.Changed = changed
	return f
}

// parseFile parses the content of a configuration file as the runtime would. path is the path or
// the name of the file, whose extension determines whether the content is a list. withOthers
// reports whether the plugins of the list that have files of their own are read, too. These files
// are in a directory next to the list, and the directory has the name of the network. libcni
// supports them since version 1.3.
func parseFile(path string, content []byte, withOthers bool) File {
	f := File{Path: path, content: content}
	if filepath.Ext(path) != ".conflist" {
		single, err := libcni.NetworkPluginConfFromBytes(content)
		if err != nil {
			f.Invalid = err
			return f
		}
		f.Network, f.cniVersion = single.Network.Name, single.Network.CNIVersion
		f.Plugins = []Plugin{plugin(content, path, "")}
		return f
	}
	list, err := libcni.NetworkConfFromBytes(content)
	if err != nil {
		f.Invalid = err
		return f
	}
	f.Network, f.cniVersion = list.Name, list.CNIVersion
	for i, entry := range list.Plugins {
		f.Plugins = append(f.Plugins, plugin(entry.Bytes, path, fmt.Sprintf("/plugins/%d", i)))
	}
	if withOthers && !list.LoadOnlyInlinedPlugins && f.Network != "" {
		dir := filepath.Dir(path)
		others, err := libcni.NetworkPluginConfsFromFiles(dir, f.Network)
		if err != nil {
			f.Unread = fmt.Errorf("reading the plugins of network %s: %w", f.Network, err)
		}
		for _, p := range others {
			f.Plugins = append(f.Plugins, plugin(p.Bytes, filepath.Join(dir, f.Network), ""))
		}
	}
	if len(f.Plugins) == 0 && f.Unread == nil {
		f.Invalid = errors.New(`it has no "plugins"`)
	}
	return f
}
