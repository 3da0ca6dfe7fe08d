package cniconf

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/must"
)

const (
	bridge  = `{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"leasehold"}},{"type":"portmap"}]}`
	flannel = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,
		"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}`
)

// loaded describes what is loaded.
func loaded(c Conf) string {
	var out []string
	for _, f := range c.Loaded {
		var plugins []string
		for _, p := range f.Plugins {
			text := p.Type
			if p.IPAM.Type != "" {
				text += "(" + p.IPAM.Type + " " + p.IPAM.Pointer + ")"
			}
			plugins = append(plugins, text)
		}
		out = append(out, filepath.Base(f.Path)+" "+f.Network+": "+strings.Join(plugins, " "))
	}
	if c.Rejected != nil {
		out = append(out, "rejected "+filepath.Base(c.Rejected.Path))
	}
	if c.Unread != nil {
		out = append(out, "unread")
	}
	return strings.Join(out, "; ")
}

func TestReadRuntime(t *testing.T) {
	dir := t.TempDir()
	defaults := Runtime{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}, Rules: Rules{MaxFiles: 1}}
	for _, tt := range []struct {
		name, content string
		want          Runtime
	}{
		{"nothing", "", defaults},
		{"containerd", "[plugins.cri.cni]\n  conf_dir = '/c'\n  bin_dirs = [\"/a\", \"/b\"]\n  max_conf_num = 3\n",
			Runtime{"/c", []string{"/a", "/b"}, Rules{MaxFiles: 3}}},
		{"containerd that loads all", "max_conf_num = 0\n",
			Runtime{defaults.ConfDir, defaults.BinDirs, Rules{MaxFiles: -1}}},
		{"CRI-O", "[crio.network]\nnetwork_dir = \"/n\"\nplugin_dirs = [\"/p\"]\n",
			Runtime{"/n", []string{"/p"}, Rules{MaxFiles: 1, SkipInvalid: true}}},
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, "a.toml"), []byte(tt.content), 0o600))
		if got := ReadRuntime("/no/such/file," + dir + "/*.toml"); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
