package image

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/leasehold-cni/leasehold/scripts/tools/image/imagetest"
)

func TestNew(t *testing.T) {
	files := []File{{"leasectl", 0o755, []byte("program leasectl")}, {"another", 0o755, []byte("program another")}}
	labels := map[string]string{"a": "b"}
	img, err := New("arm64", "65532:65532", labels, files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != "arm64" || !slices.Equal(c.Config.Entrypoint, []string{"/leasectl"}) ||
		c.Config.User != "65532:65532" || !maps.Equal(c.Config.Labels, labels) || !c.Created.IsZero() {
		t.Errorf("configuration %+v", c)
	}
	var found []string
	for _, f := range imagetest.Files(t, img) {
		if f.Header.Mode != 0o755 || f.Header.Uid != 0 || f.Content != "program "+f.Header.Name {
			t.Errorf("%+v with %q", f.Header, f.Content)
		}
		found = append(found, f.Header.Name)
	}
	if !slices.Equal(found, []string{"another", "leasectl"}) {
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
