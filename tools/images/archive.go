package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// manifest is an entry of manifest.json in an archive, as `docker save` writes it.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// config is the part of an image's configuration that an image of static programs needs. See the
// OCI image specification, config.md.
type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Entrypoint []string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// file is a member of an archive or layer.
type file struct {
	name string
	mode int64
	data []byte
}

// writeArchive writes an image with these programs in its root, of which the first is the
// entrypoint. The same programs make the same archive. It replaces an archive atomically.
func writeArchive(archive, ref, arch string, programs []string) error {
	var files []file
	for _, p := range programs {
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		files = append(files, file{filepath.Base(p), 0o755, data})
	}
	var c config
	c.Architecture, c.OS = arch, "linux"
	c.Config.Entrypoint = []string{"/" + files[0].name}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	layer, err := pack(files)
	if err != nil {
		return err
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + sum(layer)}
	configuration, err := json.Marshal(c)
	if err != nil {
		return err
	}
	compressed, err := compress(layer)
	if err != nil {
		return err
	}
	m := manifest{Config: sum(configuration) + ".json", RepoTags: []string{ref},
		Layers: []string{sum(compressed) + ".tar.gz"}}
	index, err := json.Marshal([]manifest{m})
	if err != nil {
		return err
	}
	data, err := pack([]file{{m.Config, 0o644, configuration}, {m.Layers[0], 0o644, compressed},
		{"manifest.json", 0o644, index}})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return err
	}
	tmp := archive + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, archive)
}

// pack returns a tar archive without times and owners.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
