package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"
)

const testVersion = "v1.2.3-test"

// testRelease is a release of leasectl and the plugin, which compile quickly, as the agent's image.
func testRelease(t *testing.T, repo string) release {
	t.Helper()
	repo, err := filepath.Abs(repo)
	must(t, err)
	agent := Own{Name: "agent", Programs: []string{"cmd/leasectl", "plugins/ipam/leasehold"}}
	return release{archs: allArchs, repo: repo, dir: filepath.Join(t.TempDir(), "dist"), version: testVersion,
		registry: "registry.example.org/leasehold", images: []Own{agent}}
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// copyRepo copies the files of the repository that git knows or does not ignore.
func copyRepo(t *testing.T) string {
	t.Helper()
	list, err := exec.Command("git", "-C", "../../..", "ls-files", "-z", "--cached", "--others",
		"--exclude-standard").Output()
	must(t, err)
	to := filepath.Join(t.TempDir(), "a", "copy")
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join("../../..", name))
		if err != nil {
			continue // removed in the work tree
		}
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(to, name), data, 0o644))
	}
	return to
}

func TestRelease(t *testing.T) {
	r := testRelease(t, "../../..")
	must(t, r.build(t.Context()))
	t.Run("the same bytes from another directory", func(t *testing.T) {
		other := testRelease(t, copyRepo(t))
		must(t, other.build(t.Context()))
		if a, b := read(t, r, "SHA256SUMS"), read(t, other, "SHA256SUMS"); !bytes.Equal(a, b) {
			t.Errorf("checksums\n%s\nand\n%s", a, b)
		}
	})
	t.Run("checksums", func(t *testing.T) {
		cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = r.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("programs", func(t *testing.T) { testPrograms(t, r) })
	t.Run("bill of materials", func(t *testing.T) { testBOM(t, r) })
	t.Run("krew", func(t *testing.T) { testKrew(t, r) })
	t.Run("push", func(t *testing.T) { testPush(t, r) })
}

func read(t *testing.T, r release, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	must(t, err)
	return data
}

// unpacked returns the directory with the programs of an architecture.
func unpacked(t *testing.T, r release, arch string) string {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(r.dir, fmt.Sprintf("leasehold-%s-linux-%s.tar.gz", r.version, arch))
	if out, err := exec.Command("tar", "-C", dir, "-xzf", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func testPrograms(t *testing.T, r release) {
	machine := map[string]string{"amd64": "GOARCH=amd64", "arm64": "GOARCH=arm64"}
	for _, arch := range allArchs {
		dir := unpacked(t, r, arch)
		for _, p := range r.programs() {
			info, err := buildinfo.ReadFile(filepath.Join(dir, filepath.Base(p)))
			must(t, err)
			if !strings.Contains(info.String(), machine[arch]) || strings.Contains(info.String(), "vcs.") {
				t.Errorf("%s for %s has the build information\n%s", p, arch, info)
			}
		}
		for _, file := range []string{"LICENSE", "licenses/std@" + goVersion() + "/LICENSE"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Error(err)
			}
		}
	}
	// The CNI library prints the plugin's version with those of CNI, whatever the arguments.
	for program, want := range map[string]string{"leasehold": "CNI plugin leasehold " + testVersion,
		"leasectl": "leasectl version " + testVersion} {
		out, err := exec.Command(filepath.Join(unpacked(t, r, native()), program), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s --version printed %q, %v; want %q", program, out, err, want)
		}
	}
}

// testKrew checks the manifest of the kubectl plugin, and runs the program of the archive under the
// name that krew gives it.
func testKrew(t *testing.T, r release) {
	data := read(t, r, "leasehold-"+r.version+"-krew.yaml")
	var p struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version, Homepage string
			Platforms         []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	must(t, yaml.Unmarshal(data, &p))
	if p.Spec.Version != r.version || len(p.Spec.Platforms) != len(r.archs) || bytes.ContainsRune(data, '@') {
		t.Fatalf("the manifest is\n%s", data)
	}
	for i, k := range p.Spec.Platforms {
		file := fmt.Sprintf("leasehold-%s-linux-%s.tar.gz", r.version, r.archs[i])
		labels := map[string]string{"os": "linux", "arch": r.archs[i]}
		if !maps.Equal(k.Selector.MatchLabels, labels) ||
			k.URI != p.Spec.Homepage+"/releases/download/"+r.version+"/"+file {
			t.Errorf("platform %v has the address %s", k.Selector.MatchLabels, k.URI)
		}
		if want := fmt.Sprintf("%s  %s\n", k.SHA256, file); !strings.Contains(string(read(t, r, "SHA256SUMS")), want) {
			t.Errorf("%s has another sum than %s", file, k.SHA256)
		}
	}
	link := filepath.Join(t.TempDir(), "kubectl-"+p.Metadata.Name)
	must(t, os.Symlink(filepath.Join(unpacked(t, r, native()), p.Spec.Platforms[0].Bin), link))
	out, err := exec.Command(link, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "kubectl leasehold [command]") {
		t.Errorf("kubectl-leasehold --help: %v\n%s", err, out)
	}
}

func native() string {
	out, err := exec.Command("go", "env", "GOHOSTARCH").Output()
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(out))
}

func testBOM(t *testing.T, r release) {
	var bom cdx.BOM
	must(t, cdx.NewBOMDecoder(bytes.NewReader(read(t, r, "leasehold-"+r.version+".cdx.json")),
		cdx.BOMFileFormatJSON).Decode(&bom))
	var names []string
	for _, c := range *bom.Components {
		names = append(names, c.Name)
		if c.Licenses == nil || len(*c.Licenses) == 0 {
			t.Errorf("%s has no licence", c.Name)
		}
	}
	for _, want := range []string{"std", "go.etcd.io/bbolt", "leasehold", "leasectl"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in %q", want, names)
		}
	}
	if n := len(*bom.Dependencies); n != len(allArchs)*len(r.programs()) {
		t.Errorf("%d programs have dependencies", n)
	}
	for _, d := range *bom.Dependencies { // the same as in the programs
		program, query, _ := strings.Cut(d.Ref, "@")
		_, arch, _ := strings.Cut(query, "goarch=")
		info, err := buildinfo.ReadFile(filepath.Join(unpacked(t, r, arch), filepath.Base(program)))
		must(t, err)
		want := []string{"pkg:golang/std@" + goVersion()}
		for _, m := range info.Deps {
			want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
		}
		slices.Sort(want)
		if !slices.Equal(*d.Dependencies, want) {
			t.Errorf("%s depends on %q, want %q", d.Ref, *d.Dependencies, want)
		}
	}
}

// testPush pushes to a real registry, and reads what the manifests name.
func testPush(t *testing.T, r release) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	original := r.registry
	r.registry = strings.TrimPrefix(server.URL, "http://") + "/some/path"
	must(t, r.push(t.Context()))
	named := regexp.MustCompile(regexp.QuoteMeta(original) + `/agent@(sha256:[0-9a-f]{64})`).
		FindSubmatch(read(t, r, "leasehold-"+r.version+"-replace.yaml"))
	if named == nil {
		t.Fatal("the manifest does not name the agent by digest")
	}
	ref, err := name.NewDigest(r.registry + "/agent@" + string(named[1]))
	must(t, err)
	index, err := remote.Index(ref)
	must(t, err)
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != len(allArchs) {
		t.Errorf("%+v, %v", manifest, err)
	}
	if _, err := remote.Get(ref.Context().Tag(r.version)); err != nil {
		t.Error(err)
	}
}

// TestManifests checks the manifests of all platforms: of a release, with each image of the product
// by digest and pulled, and none of the base's, the version of each workload, which kubectl
// leasehold doctor compares, and one token, because leasectl does not use the API's; and of a
// commit, with the commit's tag, so that applying them replaces the pods. Nothing pulls those: no
// registry has them, and the owner of their names there would control the nodes.
func TestManifests(t *testing.T) {
	const token = "mountPath: /var/run/secrets/kubernetes.io/serviceaccount\n"
	r := testRelease(t, "../../..")
	digests := map[string]string{"agent": "sha256:a", "manager": "sha256:b"}
	overlays, err := r.overlays()
	if err != nil || len(overlays) < 5 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	must(t, errors.Join(os.Mkdir(r.dir, 0o755), r.writeManifests(digests), r.writeDevManifests("1a2b3c4")))
	for _, o := range overlays {
		for file, parts := range map[string]map[string]int{
			"leasehold-" + r.version + "-" + o.platform + ".yaml": {
				"image: " + r.registry + "/agent@sha256:a\n":     2,
				"image: " + r.registry + "/manager@sha256:b\n":   1,
				"app.kubernetes.io/version: " + r.version + "\n": 2,
				token:                    1,
				"imagePullPolicy: Never": 0, "image: leasehold/": 0, ":latest": 0, ":devel": 0},
			o.platform + ".yaml": {" image: ": 3, "image: leasehold/": 3, ":1a2b3c4\n": 3,
				"imagePullPolicy: Never\n": 3},
		} {
			for part, want := range parts {
				if n := strings.Count(string(read(t, r, file)), part); n != want {
					t.Errorf("%s contains %q %d times, want %d", file, part, n, want)
				}
			}
		}
	}
}

func TestRunRejects(t *testing.T) {
	for want, args := range map[string][]string{
		"VERSION=latest; want a semantic version": {"build", "-version", "latest", "-registry", "r.example.org/x"},
		"VERSION=v1; want a semantic version":     {"build", "-version", "v1", "-registry", "r.example.org/x"},
		"REGISTRY=: ":                             {"build", "-version", "v1.0.0"},
		"REGISTRY=UPPER":                          {"build", "-version", "v1.0.0", "-registry", "UPPER"},
		"0 archives of images, want one":          {"push", "-o", t.TempDir(), "-registry", "r.example.org/x"},
		`unknown command "pull"`:                  {"pull"},
		`unknown command ""`:                      nil,
		"a/b:c: want REFERENCE:TAG=":              {"images", "a/b:c"},
		"a/b=c: want REFERENCE:TAG=":              {"images", "a/b=c"},
		"a/b:c=: want REFERENCE:TAG=":             {"images", "a/b:c="},
	} {
		if err := run(context.Background(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// TestLicences checks which files of a module are accepted.
func TestLicences(t *testing.T) {
	apache, err := os.ReadFile("../../../LICENSE")
	must(t, err)
	const gpl = "GNU GENERAL PUBLIC LICENSE\nVersion 2, June 1991\nSPDX-License-Identifier: GPL-2.0-only\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		wrong string // in the error, if there is one
	}{
		{"no file", nil, "no known licence"},
		{"an allowed one", map[string]string{"LICENSE": string(apache), "NOTICE": "Copyright"}, ""},
		{"only a notice", map[string]string{"NOTICE": "Copyright"}, "no known licence"},
		{"one that is not allowed", map[string]string{"LICENSE": gpl}, "LICENSE is"},
		{"one that is not allowed beside an allowed one",
			map[string]string{"LICENSE": string(apache), "LICENSE.GPL": gpl}, "LICENSE.GPL is"},
		{"an unknown one", map[string]string{"LICENSE": string(apache), "COPYING": "All rights reserved."},
			"COPYING is not a known licence"},
	} {
		root := t.TempDir()
		for name, text := range tt.files {
			must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
		}
		must(t, os.Mkdir(filepath.Join(root, "linked"), 0o755))
		m := module{Path: "example.org/m", Version: "v1.0.0", texts: map[string][]byte{}}
		err := errors.Join(m.readLicences(root, filepath.Join(root, "linked")), m.identify())
		if (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.wrong)
		}
	}
}
