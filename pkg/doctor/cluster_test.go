package doctor

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The names of the policies that are looked for are those of the manifests.
func TestPoliciesAreThoseOfTheManifests(t *testing.T) {
	policy := regexp.MustCompile(`(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (\S+)$`)
	const base = "../../daemonset/base"
	want := map[string]string{}
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range policy.FindAllStringSubmatch(string(text), -1) {
			want[m[1]] = strings.TrimPrefix(path, base+"/")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(policies, want) {
		t.Errorf("policies %v, want those of the manifests: %v", policies, want)
	}
}

func TestSimilar(t *testing.T) {
	const window = "io.kubernetes.cri/reserved-ip-duration"
	for key, want := range map[string]string{
		"io.kubernetes.cri/reserved-ip-duratoin": window, "io.kubernetes.cri.reserved-ip-duration": window,
		"reserved-ip-duration": window, "example.org/reserved-ip-duration": window, "io.kubernetes.cri/reserved-ip": "",
		"leasehold.dev/pins": "leasehold.dev/pin", "leashold.dev/pin": "leasehold.dev/pin",
		"leasehold.dev/pinned-node": "", "leasehold.dev/pin-reason": "", "example.org/pin": "", "pin": "", "": "",
	} {
		if got := similar(key); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func TestCommandQuotes(t *testing.T) {
	got := command("kubectl", "patch", "-p", `{"a":"it's"}`, "--dir=/a b")
	if want := `kubectl patch -p '{"a":"it'\''s"}' '--dir=/a b'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
