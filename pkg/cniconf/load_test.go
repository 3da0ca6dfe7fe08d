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

// write creates files in a new directory. A content "-> x" is a link to x, "/" a directory, and
// "fifo" a FIFO.
func write(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		err := error(nil)
		target, isLink := strings.CutPrefix(text, "-> ")
		switch {
		case isLink:
			err = os.Symlink(target, path)
		case text == "/":
			err = os.Mkdir(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		must.Succeed(t, err)
	}
	return dir
}

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

func TestLoad(t *testing.T) {
	list := func(name, ipam string) string {
		return `{"name":"` + name + `","plugins":[{"type":"ptp","ipam":{"type":"` + ipam + `"}}]}`
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		rules Rules
		want  string
	}{
		{"the first in lexical order, whatever its extension", map[string]string{
			"20-b.conf": `{"name":"b","type":"ptp","ipam":{"type":"dhcp"}}`, "10-a.conflist": bridge, "9.json": "{",
		}, Rules{}, "10-a.conflist net: bridge(leasehold /plugins/0/ipam/type) portmap"},
		{"bytes, not letters", map[string]string{"a.conflist": list("a", "x"), "B.conflist": list("b", "x")}, Rules{},
			"B.conflist b: ptp(x /plugins/0/ipam/type)"},
		{"a file with one plugin", map[string]string{"1.conf": `{"name":"b","type":"ptp","ipam":{"type":"dhcp"}}`},
			Rules{}, "1.conf b: ptp(dhcp /ipam/type)"},
		{"flannel's default", map[string]string{"10-flannel.conflist": flannel}, Rules{},
			"10-flannel.conflist cbr0: flannel(host-local /plugins/0/ipam/type) portmap"},
		{"others are no configurations", map[string]string{"10.conflist.bak": "{", ".conf": list("a", "x"),
			"00-leasehold.conflist~": "{", "sub.conf": "/", "10-b.conflist": list("b", "x")}, Rules{},
			"rejected .conf"},
		{"a directory with such a name", map[string]string{"00.conf": "/", "10-b.conflist": list("b", "x")}, Rules{},
			"10-b.conflist b: ptp(x /plugins/0/ipam/type)"},
		{"a link", map[string]string{"10.conflist": "-> else/where", "else/where": list("b", "x")}, Rules{},
			"10.conflist b: ptp(x /plugins/0/ipam/type)"},
		{"a link to nothing", map[string]string{"10.conflist": "-> nowhere", "20.conflist": bridge}, Rules{},
			"rejected 10.conflist"},
		{"not JSON", map[string]string{"10.conflist": "name: x", "20.conflist": bridge}, Rules{},
			"rejected 10.conflist"},
		{"not JSON, CRI-O", map[string]string{"10.conflist": "name: x", "20.conflist": list("b", "x")},
			Rules{SkipInvalid: true}, "20.conflist b: ptp(x /plugins/0/ipam/type)"},
		{"empty", map[string]string{"10.conflist": ""}, Rules{}, "rejected 10.conflist"},
		{"a list in a .conf", map[string]string{"10.conf": bridge}, Rules{}, "rejected 10.conf"},
		{"no plugins", map[string]string{"10.conflist": `{"name":"x","plugins":[]}`}, Rules{}, "rejected 10.conflist"},
		{"no type", map[string]string{"10.conflist": `{"name":"x","plugins":[{}]}`}, Rules{}, "rejected 10.conflist"},
		{"an ipam section that is a text", map[string]string{
			"10.conflist": `{"name":"x","plugins":[{"type":"ptp","ipam":"leasehold"}]}`}, Rules{},
			"rejected 10.conflist"},
		{"two are loaded", map[string]string{"1.conflist": list("a", "x"), "2.conflist": list("b", "y"),
			"3.conflist": list("c", "z")}, Rules{MaxFiles: 2},
			"1.conflist a: ptp(x /plugins/0/ipam/type); 2.conflist b: ptp(y /plugins/0/ipam/type)"},
		{"all are loaded", map[string]string{"1.conflist": list("a", "x"), "2.conflist": list("b", "y")},
			Rules{MaxFiles: -1},
			"1.conflist a: ptp(x /plugins/0/ipam/type); 2.conflist b: ptp(y /plugins/0/ipam/type)"},
		{"all, and the second is not valid", map[string]string{"1.conflist": list("a", "x"), "2.conflist": "{"},
			Rules{MaxFiles: -1}, "rejected 2.conflist"},
		{"plugins in files of their own", map[string]string{"1.conflist": `{"name":"a"}`,
			"a/1.conf": `{"type":"ptp","ipam":{"type":"x"}}`, "a/2.conf": `{"type":"tuning"}`, "a/3.conflist": "{"},
			Rules{}, "1.conflist a: ptp(x /ipam/type) tuning"},
		{"such files, but not wanted", map[string]string{"a/1.conf": `{"type":"ptp"}`,
			"1.conflist": `{"name":"a","loadOnlyInlinedPlugins":true,"plugins":[{"type":"bridge"}]}`},
			Rules{}, "1.conflist a: bridge"},
		{"no such files", map[string]string{"1.conflist": `{"name":"a"}`}, Rules{}, "rejected 1.conflist"},
		{"none", nil, Rules{}, ""},
	} {
		if got := loaded(Load(write(t, c.files), c.rules)); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestLoadWithoutDirectory(t *testing.T) {
	if c := Load(filepath.Join(t.TempDir(), "none"), Rules{}); c.Unread != nil || len(c.Files) > 0 {
		t.Errorf("%+v, want no files and no error", c)
	}
}

// A file that cannot be read may be what the runtime loads.
func TestLoadUnread(t *testing.T) {
	dir := write(t, map[string]string{"10.conflist": "-> /proc/self/mem", "20.conflist": bridge})
	for _, rules := range []Rules{{}, {SkipInvalid: true}} {
		if c := Load(dir, rules); c.Unread == nil || c.Rejected >= 0 || len(c.Loaded) > 0 {
			t.Errorf("%+v: %s, want unread", rules, loaded(c))
		}
	}
	must.Succeed(t, os.Rename(filepath.Join(dir, "10.conflist"), filepath.Join(dir, "30.conflist")))
	if c := Load(dir, Rules{}); c.Unread != nil || len(c.Loaded) != 1 {
		t.Errorf("%s, want the first file: the other one is not looked at", loaded(c))
	}
	loop := write(t, map[string]string{"a": "-> a"})
	if c := Load(filepath.Join(loop, "a"), Rules{}); c.Unread == nil {
		t.Errorf("a link to itself: %s, want unread", loaded(c))
	}
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
