package cniconf

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
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
				changed, err = change("1.conflist", changed)
				must.Succeed(t, err)
			}
			check.Equal(t, string(changed), text, "after", len(changes), "changes and their undoing")
		}
	}
}

// TestUndos changes what it finds in a directory.
func TestUndos(t *testing.T) {
	const linked = `{"name":"b","plugins":[{"type":"ptp","ipam":{"type":"leasehold"}}]}`
	installed, err := WithLeasehold("1.conflist", []byte(stockList))
	want := strings.Replace(stockList, `"type": "flannel"`,
		`"ipam": {"type": "leasehold"},`+"\n      "+`"type": "flannel"`, 1)
	must.Succeed(t, err)
	check.Equal(t, string(installed), want)
	dir := write(t, map[string]string{"10-a.conflist": string(installed), "20-b.conflist": "-> else/where",
		"else/where": linked, "30-c.conflist": "-> nowhere", "40-d.conflist": "{",
		"50-e.conf": `{"name":"e","type":"ptp","ipam":{"type":"host-local"}}`})
	undos, err := Load(dir, Rules{}).Undos()
	if err != nil || len(undos) != 2 {
		t.Fatalf("%+v, %v", undos, err)
	}
	for _, u := range undos {
		must.Succeed(t, u.Write())
	}
	for name, want := range map[string]string{"10-a.conflist": stockList,
		"else/where": strings.Replace(linked, "leasehold", "host-local", 1)} {
		check.Equal(t, string(must.Read(t, filepath.Join(dir, name))), want, name)
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
	check.Error(t, undos[0].Write(), "changed by another program", "a file that was changed meanwhile")
}
