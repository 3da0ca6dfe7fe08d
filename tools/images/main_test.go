package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestRun(t *testing.T) {
	*repo, *out, *version = "../..", t.TempDir(), "v1"
	if err := run(t.Context(), []string{"leasehold/pause:test=test/e2e/images/pause"}); err != nil {
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
	if err != nil || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/pause" {
		t.Errorf("configuration %+v, %v", c, err)
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
