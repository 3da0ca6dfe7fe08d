package cniconf

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/must"
)

// TestUninstallUndoesInstall changes configurations as leasectl install does, in any order, and
// wants them back to the byte.
func TestUninstallUndoesInstall(t *testing.T) {
	for _, text := range []string{stockList,
		`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"flannel","ipam":{ "routes":[] }},{"type":"portmap"}]}`,
		"{\"name\":\"n\",\"cniVersion\":\"1.0.0\",\"plugins\":[\n\t{ \"type\":\"bridge\",\n\t\"capabilities\" : " +
			"{\"ips\": true},\n\t\"ipam\":{\n\t\t\"type\" : \"host-local\",\n\t\t\"subnet\":\"10.0.0.0/8\" } } ]\n}",
	} {
		for _, changes := range [][]func(string, []byte) ([]byte, error){{}, {WithLeasehold},
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
	want := strings.Replace(stockList, `"type": "flannel"`,
		`"ipam": {"type": "leasehold"},`+"\n      "+`"type": "flannel"`, 1)
	if err != nil || string(installed) != want {
		t.Fatalf("%s, %v; want %s", installed, err, want)
	}
	dir := write(t, map[string]string{"10-a.conflist": string(installed), "20-b.conflist": "-> else/where",
		"else/where": linked, "30-c.conflist": "-> nowhere", "40-d.conflist": "{",
		"50-e.conf": `{"name":"e","type":"ptp","ipam":{"type":"host-local"}}`})
	undos, err := Load(dir, Rules{}).Undos()
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
	if undos, err = Load(dir, Rules{}).Undos(); err != nil || len(undos) > 0 {
		t.Errorf("a second time: %+v, %v", undos, err)
	}
}

func TestWriteOfAChangedFile(t *testing.T) {
	const ours = `{"name":"a","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`
	dir := write(t, map[string]string{"1.conflist": ours})
	undos, err := Load(dir, Rules{}).Undos()
	if err != nil || len(undos) != 1 {
		t.Fatalf("%+v, %v", undos, err)
	}
	must.Succeed(t, os.WriteFile(undos[0].Path, []byte(stockList), 0o600))
	if err := undos[0].Write(); err == nil || !strings.Contains(err.Error(), "changed by another program") {
		t.Errorf("a file that was changed meanwhile: %v", err)
	}
}
