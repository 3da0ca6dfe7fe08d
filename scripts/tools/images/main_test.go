package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/leasehold-cni/leasehold/scripts/tools/image/imagetest"
)

func TestRun(t *testing.T) {
	*repo, *out, *version = "../../..", t.TempDir(), "v1"
	built := filepath.Join(t.TempDir(), "built")
	if err := os.WriteFile(built, []byte("a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	images := []string{"leasehold/pause:test=test/e2e/images/pause@/bin/pause," + built}
	if err := run(t.Context(), images); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(*out, "pause.tar")
	tag, err := name.NewTag("leasehold/pause:test")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/bin/pause" {
		t.Errorf("configuration %+v, %v", c, err)
	}
	var files []string
	for _, f := range imagetest.Files(t, img) {
		files = append(files, f.Header.Name)
	}
	if !slices.Equal(files, []string{"bin/pause", "built"}) {
		t.Errorf("files %q", files)
	}
	if _, err := os.Stat(archive + ".tmp"); err == nil {
		t.Error("a temporary file is left")
	}
}

func TestRunRejects(t *testing.T) {
	for _, arg := range []string{"leasehold/agent:devel", "leasehold/agent=cmd/leasehold-agent",
		"leasehold/agent:devel="} {
		if err := run(t.Context(), []string{arg}); err == nil {
			t.Errorf("%q was accepted", arg)
		}
	}
}
