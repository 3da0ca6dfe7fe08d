package cniconf

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWithoutLeasehold(t *testing.T) {
	const list, single = "10-net.conflist", "10-net.conf"
	for _, c := range []struct {
		name, file string
		text, want string // "@" stands for a name and a version; want "": an error
		err        string
	}{
		{"flannel's list", list, `{@,"plugins":[{"type":"flannel","ipam":{"type":"leasehold"},"x":1}]}`,
			`{@,"plugins":[{"type":"flannel","x":1}]}`, ""},
		{"host-local is named already", list, stockList, stockList, ""},
		{"keys of leasehold alone stay, which host-local ignores", single,
			`{@,"type":"bridge","ipam" : {"type" :"leasehold", "subnet":"10.0.0.0/8","coolDown":"1m","x":[{}]}}`,
			`{@,"type":"bridge","ipam" : {"type" :"host-local", "subnet":"10.0.0.0/8","coolDown":"1m","x":[{}]}}`, ""},
		{"the annotations", single,
			`{@,"type":"ptp","capabilities":{"io.kubernetes.cri.pod-annotations": true,"a":true},` +
				`"ipam":{"type":"leasehold"}}`,
			`{@,"type":"ptp","capabilities":{"a":true},"ipam":{"type":"host-local"}}`, ""},
		{"annotations that leasectl has not added", single,
			`{@,"type":"ptp","capabilities":{"a":true,"io.kubernetes.cri.pod-annotations":true},` +
				`"ipam":{"type":"leasehold"}}`,
			`{@,"type":"ptp","capabilities":{"a":true,"io.kubernetes.cri.pod-annotations":true},` +
				`"ipam":{"type":"host-local"}}`, ""},
		{"a delegate of Multus", single,
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"leasehold"}}]}`,
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"host-local"}}]}`, ""},
		{"a chained entry", list,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}, {"type":"leasehold"}, {"type":"tuning"}]}`,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}}, {"type":"tuning"}]}`, ""},
		{"the last one, and host-local", list,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}} , {"x":[{}],"type":"leasehold"} ]}`,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}} ]}`, ""},
		{"several", list,
			`{@,"plugins":[{"type":"leasehold"},{"type":"leasehold"},{"type":"ptp"},{"type":"leasehold"}]}`,
			`{@,"plugins":[{"type":"ptp"}]}`, ""},
		{"another IPAM plugin", single, `{@,"type":"calico","ipam":{"type":"calico-ipam"}}`,
			`{@,"type":"calico","ipam":{"type":"calico-ipam"}}`, ""},
		{"what no runtime loads", list, `{"ipam":{"type":"leasehold"}`, `{"ipam":{"type":"leasehold"}`, ""},
		{"what can be read in two ways", single, `{@,"type":"ptp","IPAM":{"type":"leasehold"},"ipam":null}`, "",
			`one has to go, because plugins ignore the case of keys; write "ipam": {"type": "host-local", ...} ` +
				`in the entry of ptp by hand`},
		{"the same of flannel", single, `{@,"type":"flannel","IPAM":{"type":"leasehold"},"ipam":{}}`, "",
			`one has to go`},
		{"keys in another case", single, `{@,"Type":"ptp","IPAM":{"TYPE":"leasehold"}}`,
			`{@,"Type":"ptp","IPAM":{"TYPE":"host-local"}}`, ""},
		{"what flannel does not read", single, `{@,"type":"flannel","ipam":{"Type":"leasehold"}}`,
			`{@,"type":"flannel","ipam":{"Type":"leasehold"}}`, ""},
		{"leasehold alone", single, `{@,"type":"leasehold","ipam":{"type":"leasehold"}}`, "",
			"the whole file cannot be removed"},
		{"nothing but leasehold", list, `{@,"plugins":[{"type":"leasehold"}]}`, "", "no runtime would load it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := strings.NewReplacer("@", `"name":"n","cniVersion":"1.0.0"`)
			got, err := WithoutLeasehold(c.file, []byte(head.Replace(c.text)))
			if (err == nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if want := head.Replace(c.want); err == nil && string(got) != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
}

// TestUninstallUndoesInstall changes configurations as leasectl install does, in any order, and
// wants them back to the byte.
func TestUninstallUndoesInstall(t *testing.T) {
	for _, text := range []string{stockList,
		`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"flannel","ipam":{ "routes":[] }},{"type":"portmap"}]}`,
		"{\"name\":\"n\",\"cniVersion\":\"1.0.0\",\"plugins\":[\n\t{ \"type\":\"bridge\",\n\t\"capabilities\" : " +
			"{\"ips\": true},\n\t\"ipam\":{\n\t\t\"type\" : \"host-local\",\n\t\t\"subnet\":\"10.0.0.0/8\" } } ]\n}",
	} {
		for _, changes := range [][]func(string, []byte) ([]byte, error){{WithLeasehold},
			{WithLeasehold, WithAnnotations}, {WithAnnotations, WithLeasehold}, {WithLeasehold, WithoutLeasehold,
				WithAnnotations, WithAnnotations, WithLeasehold}} {
			changed, err := []byte(text), error(nil)
			for _, change := range append(changes, WithoutLeasehold) {
				if changed, err = change("1.conflist", changed); err != nil {
					t.Fatal(err)
				}
			}
			if string(changed) != text {
				t.Errorf("after %d changes and their undoing\n%s\nwant\n%s", len(changes), changed, text)
			}
		}
	}
}

// TestUndos changes what it finds in a directory.
func TestUndos(t *testing.T) {
	const linked = `{"name":"b","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`
	installed, err := WithLeasehold("1.conflist", []byte(stockList))
	if err != nil {
		t.Fatal(err)
	}
	dir := write(t, map[string]string{"10-a.conflist": string(installed), "20-b.conflist": "-> else/where",
		"else/where": linked, "30-c.conflist": "-> nowhere", "40-d.conflist": "{",
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
	for name, want := range map[string]string{"10-a.conflist": stockList,
		"else/where": strings.Replace(linked, "leasehold", "host-local", 1)} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
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
		{"plugins in files of their own", map[string]string{"1.conflist": `{"name":"a"}`,
			"a/1.conf": `{"type":"ptp","ipam":{"type":"leasehold"}}`},
			"/a names leasehold; name host-local there"},
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
