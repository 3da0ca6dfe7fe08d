package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Manifests of another commit name other images, so that applying them replaces the pods.
func TestDevManifests(t *testing.T) {
	r := release{repo: "../../..", dir: t.TempDir()}
	must(t, r.writeDevManifests("1a2b3c4"))
	overlays, err := filepath.Glob("../../../daemonset/overlays/*")
	if err != nil || len(overlays) < 5 {
		t.Fatalf("overlays %v, %v", overlays, err)
	}
	for _, o := range overlays {
		text, err := os.ReadFile(filepath.Join(r.dir, filepath.Base(o)+".yaml"))
		must(t, err)
		images := strings.Count(string(text), "image: leasehold/")
		if ours := strings.Count(string(text), ":1a2b3c4\n"); images < 3 || ours != images {
			t.Errorf("%s: %d of %d images have the tag", o, ours, images)
		}
	}
}
