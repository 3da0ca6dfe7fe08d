package cniconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWithoutLeasehold(t *testing.T) {
	const list, single = "10-net.conflist", "10-net.conf"
	installed, err := WithLeasehold(list, []byte(stockList))
	if err != nil {
		t.Fatal(err)
	}
	annotated, err := WithAnnotations(list, []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp",`+
		`"ipam":{"type":"leasehold"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file         string
		text, before, want string // "@" stands for a name and a version; want "": an error
		edited             bool
		err                string
	}{
		{"what leasectl install has made", list, string(installed), stockList, stockList, false, ""},
		{"the same without a backup", list, string(installed), "",
			strings.Replace(string(installed), `"leasehold"`, `"host-local"`, 1), true, ""},
		{"the same, edited since", list, `{@,"plugins":[{"type":"flannel","ipam":{"type":"leasehold"}}]}`, stockList,
			`{@,"plugins":[{"type":"flannel","ipam":{"type":"host-local"}}]}`, true, ""},
		{"what leasectl install has annotated was edited before", list, string(annotated),
			`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`,
			`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp","ipam":{"type":"host-local"}}]}`, true, ""},
		{"host-local is named already", list, stockList, string(installed), stockList, false, ""},
		{"keys of leasehold alone stay, which host-local ignores", single,
			`{@,"type":"bridge","ipam" : {"type" :"leasehold", "subnet":"10.0.0.0/8","softHold":"1m","x":[{}]}}`, "",
			`{@,"type":"bridge","ipam" : {"type" :"host-local", "subnet":"10.0.0.0/8","softHold":"1m","x":[{}]}}`,
			true, ""},
		{"a delegate of Multus", single,
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"leasehold"}}]}`, "",
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"host-local"}}]}`, true, ""},
		{"a chained entry", list,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}, {"type":"leasehold"}, {"type":"tuning"}]}`, "",
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}}, {"type":"tuning"}]}`, true, ""},
		{"the last one, and host-local", list,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}} , {"x":[{}],"type":"leasehold"} ]}`, "",
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}} ]}`, true, ""},
		{"several", list,
			`{@,"plugins":[{"type":"leasehold"},{"type":"leasehold"},{"type":"ptp"},{"type":"leasehold"}]}`, "",
			`{@,"plugins":[{"type":"ptp"}]}`, true, ""},
		{"another IPAM plugin", single, `{@,"type":"calico","ipam":{"type":"calico-ipam"}}`, "",
			`{@,"type":"calico","ipam":{"type":"calico-ipam"}}`, false, ""},
		{"what no runtime loads", list, `{"ipam":{"type":"leasehold"}`, "", `{"ipam":{"type":"leasehold"}`, false, ""},
		{"what can be read in two ways", single,
			`{@,"type":"ptp","IPAM":{"type":"leasehold"},"ipam":null}`, "", "", false,
			`/ipam is not an object`},
		{"a key in another case, which plugins read, too", single,
			`{@,"type":"ptp","IPAM":{"type":"leasehold"}}`, "",
			`{"ipam": {"type": "host-local"},@,"type":"ptp","IPAM":{"type":"leasehold"}}`, // libcni sorts keys
			true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := strings.NewReplacer("@", `"name":"n","cniVersion":"1.0.0"`)
			var before []byte
			if c.before != "" {
				before = []byte(head.Replace(c.before))
			}
			got, edited, err := WithoutLeasehold(c.file, []byte(head.Replace(c.text)), before)
			if (err == nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if want := head.Replace(c.want); err == nil && (string(got) != want || edited != c.edited) {
				t.Errorf("edited: %v, %s\nwant %v, %s", edited, got, c.edited, want)
			}
		})
	}
}

// TestUndos changes what it finds in a directory, and keeps what was edited by hand.
func TestUndos(t *testing.T) {
	const edited = `{"name":"b","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`
	installed, err := WithLeasehold("1.conflist", []byte(stockList))
	if err != nil {
		t.Fatal(err)
	}
	dir := write(t, map[string]string{"10-a.conflist": string(installed), "10-a.conflist.leasehold-backup": stockList,
		"20-b.conflist": "-> else/where", "else/where": edited, "30-c.conflist": "-> nowhere", "40-d.conflist": "{",
		"50-e.conf": `{"name":"e","type":"ptp","ipam":{"type":"host-local"}}`})
	undos, err := Undos(dir)
	if err != nil || len(undos) != 2 {
		t.Fatalf("%+v, %v", undos, err)
	}
	for _, u := range undos {
		if err := u.Write(); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{"10-a.conflist": stockList, "10-a.conflist.leasehold-backup": "",
		"10-a.conflist.before-uninstall": "", "20-b.conflist.before-uninstall": edited,
		"else/where": strings.Replace(edited, "leasehold", "host-local", 1)} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || string(text) != want {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "20-b.conflist")); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if undos, err = Undos(dir); err != nil || len(undos) > 0 {
		t.Errorf("a second time: %+v, %v", undos, err)
	}
}

func TestUndosErrors(t *testing.T) {
	const ours = `{"name":"a","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"a configuration that cannot be read", map[string]string{"1.conflist": "-> /proc/self/mem"}, "1.conflist"},
		{"a backup that cannot be read", map[string]string{"1.conflist": ours, "1.conflist.leasehold-backup": "/"},
			"is a directory"},
		{"plugins in files of their own", map[string]string{"1.conflist": `{"name":"a"}`,
			"a/1.conf": `{"type":"ptp","ipam":{"type":"leasehold"}}`},
			"a/1.conf names leasehold; name host-local there"},
	} {
		if undos, err := Undos(write(t, c.files)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", c.name, undos, err, c.want)
		}
	}
	dir := write(t, map[string]string{"1.conflist": ours})
	undos, err := Undos(dir)
	if err != nil || len(undos) != 1 {
		t.Fatalf("%+v, %v", undos, err)
	}
	if err := os.WriteFile(undos[0].Path, []byte(stockList), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := undos[0].Write(); err == nil || !strings.Contains(err.Error(), "changed by another program") {
		t.Errorf("a file that was changed meanwhile: %v", err)
	}
}
