package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// unpack returns the members of a tar archive by name.
func unpack(t *testing.T, data []byte) map[string]tar.Header {
	t.Helper()
	files := map[string]tar.Header{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		h.Linkname = string(body) // regular files have none
		files[h.Name] = *h
	}
}

func TestWriteArchive(t *testing.T) {
	dir := t.TempDir()
	var programs []string
	for _, name := range []string{"installer", "another"} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("program "+name), 0o700); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	archive := filepath.Join(dir, "images/installer.tar")
	write := func() []byte {
		if err := writeArchive(archive, "leasehold/installer:v1", "arm64", programs); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data := write()
	files := unpack(t, data)
	var index []manifest
	if err := json.Unmarshal([]byte(files["manifest.json"].Linkname), &index); err != nil || len(index) != 1 {
		t.Fatalf("manifest.json: %v, %v", index, err)
	}
	m := index[0]
	if !reflect.DeepEqual(m.RepoTags, []string{"leasehold/installer:v1"}) || len(m.Layers) != 1 {
		t.Errorf("manifest.json: %+v", m)
	}
	var c config
	if err := json.Unmarshal([]byte(files[m.Config].Linkname), &c); err != nil {
		t.Fatal(err)
	}
	compressed := files[m.Layers[0]].Linkname
	if m.Config != sum([]byte(files[m.Config].Linkname))+".json" || m.Layers[0] != sum([]byte(compressed))+".tar.gz" {
		t.Errorf("names that are not of the contents: %+v", m)
	}
	r, err := gzip.NewReader(bytes.NewReader([]byte(compressed)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != "arm64" ||
		!reflect.DeepEqual(c.Config.Entrypoint, []string{"/installer"}) ||
		c.RootFS.Type != "layers" || !reflect.DeepEqual(c.RootFS.DiffIDs, []string{"sha256:" + sum(layer)}) {
		t.Errorf("configuration %+v", c)
	}
	members := unpack(t, layer)
	for _, name := range []string{"installer", "another"} {
		if h := members[name]; h.Linkname != "program "+name || h.Mode != 0o755 || h.Uid != 0 {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if len(members) != 2 {
		t.Errorf("%d members, want 2", len(members))
	}
	if !bytes.Equal(write(), data) {
		t.Error("the same programs made another archive")
	}
}

func TestRunRejects(t *testing.T) {
	for _, arg := range []string{"leasehold/agent:latest", "leasehold/agent=cmd/leasehold-agent",
		"leasehold/agent:latest="} {
		if err := run(t.Context(), []string{arg}); err == nil {
			t.Errorf("%q was accepted", arg)
		}
	}
}
