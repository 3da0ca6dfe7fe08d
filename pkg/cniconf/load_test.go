package cniconf

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
	for _, i := range c.Loaded {
		f := c.Files[i]
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
	if c.Rejected >= 0 {
		out = append(out, "rejected "+filepath.Base(c.Files[c.Rejected].Path))
	}
	if c.Unread != nil {
		out = append(out, "unread")
	}
	return strings.Join(out, "; ")
}

func TestMultus(t *testing.T) {
	inline := `{"type":"multus","name":"multus","kubeconfig":"/x","delegates":[{"name":"cbr0","plugins":[
		{"type":"flannel","ipam":{"type":"leasehold"}},{"type":"portmap"}]},
		{"name":"b","type":"ptp","ipam":{"type":"dhcp"}}]}`
	want := []Delegate{
		{Network: "cbr0", Plugins: []Plugin{
			{Type: "flannel", File: "f", Pointer: "/delegates/0/plugins/0",
				IPAM:               IPAM{Type: "leasehold", Pointer: "/delegates/0/plugins/0/ipam/type"},
				AnnotationsPointer: "/delegates/0/plugins/0/capabilities/" + annotations},
			{Type: "portmap", File: "f", Pointer: "/delegates/0/plugins/1"},
		}},
		{Network: "b", Plugins: []Plugin{{Type: "ptp", File: "f", Pointer: "/delegates/1",
			IPAM:               IPAM{Type: "dhcp", Pointer: "/delegates/1/ipam/type"},
			AnnotationsPointer: "/delegates/1/capabilities/" + annotations}}},
	}
	p := plugin([]byte(inline), "f", "")
	if diff := cmp.Diff(want, p.Follows, cmpopts.IgnoreUnexported(Plugin{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, text := range []string{`{}`, `{"delegates":{}}`, `{"delegates":[1]}`, `{"delegates":[{"name":"cbr0"}]}`,
		`{"delegates":[{"plugins":[{}]}]}`, `{"delegates":[{"plugins":[[]]}]}`, `{"delegates":[{"plugins":"bad"}]}`} {
		text = strings.Replace(`{"type":"multus",`+text[1:], ",}", "}", 1)
		if p := plugin([]byte(text), "f", ""); p.Type != "multus" || len(p.Follows) > 0 {
			t.Errorf("%s follows %v", text, p.Follows)
		}
	}
}

// at returns the value at a JSON pointer without escapes.
func at(doc any, pointer string) (any, error) {
	for _, step := range strings.Split(pointer, "/")[1:] {
		switch v := doc.(type) {
		case map[string]any:
			doc = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				return nil, fmt.Errorf("no element %s", step)
			}
			doc = v[i]
		default:
			return nil, fmt.Errorf("%s: in a %T", step, doc)
		}
	}
	return doc, nil
}

func FuzzReadFile(f *testing.F) {
	for _, s := range []string{
		bridge, flannel, `{"type":"multus","delegates":[` + bridge + `]}`, `{"name":"../..","a":1}`,
		`{"type":"x","ipam":null}`, `{"name":"a","plugins":[{"type":"a","ipam":{"TYPE":"b","type":"c"}}]}`} {
		f.Add(s, true)
		f.Add(s, false)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content string, isList bool) {
		path := filepath.Join(dir, "1.conf")
		if isList {
			path += "list"
		}
		must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
		got := readFile(path)
		if usable := got.Invalid == nil && got.Unread == nil; usable != (len(got.Plugins) > 0) && usable {
			t.Fatalf("usable without plugins: %+v", got)
		}
		var doc any
		if json.Unmarshal([]byte(content), &doc) != nil {
			if got.Invalid == nil {
				t.Fatalf("not JSON, but accepted: %+v", got)
			}
			return
		}
		for _, p := range got.Plugins {
			if p.File != path || p.IPAM.Type == "" || p.IPAM.Default || p.Ambiguous != "" {
				continue
			}
			if v, err := at(doc, p.IPAM.Pointer); err != nil || v != p.IPAM.Type {
				t.Fatalf("at %s: %v, %v; want %q in %s", p.IPAM.Pointer, v, err, p.IPAM.Type, content)
			}
		}
	})
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
