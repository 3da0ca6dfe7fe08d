package image

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
)

func TestNew(t *testing.T) {
	files := []File{{"installer", 0o755, []byte("program installer")}, {"another", 0o755, []byte("program another")}}
	labels := map[string]string{"a": "b"}
	img, err := New("arm64", "65532:65532", labels, files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != "arm64" || !slices.Equal(c.Config.Entrypoint, []string{"/installer"}) ||
		c.Config.User != "65532:65532" || !maps.Equal(c.Config.Labels, labels) || !c.Created.IsZero() {
		t.Errorf("configuration %+v", c)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var found []string
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o755 || h.Uid != 0 || string(data) != "program "+h.Name {
			t.Errorf("%+v with %q", h, data)
		}
		found = append(found, h.Name)
	}
	if !slices.Equal(found, []string{"another", "installer"}) {
		t.Errorf("files %q", found)
	}
	again, err := New("arm64", "65532:65532", labels, slices.Clone(files))
	if err != nil {
		t.Fatal(err)
	}
	a, errA := img.Digest()
	b, errB := again.Digest()
	if a != b || errors.Join(errA, errB) != nil {
		t.Errorf("the same files made the images %v and %v, %v", a, b, errors.Join(errA, errB))
	}
}
