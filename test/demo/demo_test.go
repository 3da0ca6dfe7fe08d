package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// varying is what differs between two runs of the demo: container ids and times.
var varying = regexp.MustCompile(`\b([0-9a-f]{8}|[0-9a-f]{13})\b|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// TestPictureOfReadme checks that the picture in README.md is what the demo prints.
func TestPictureOfReadme(t *testing.T) {
	s := &presenter{}
	t.Cleanup(s.close)
	s.node = lab.NewNode(s)
	runRecorded(s)
	const file = "docs/images/demo.svg"
	recorded, err := os.ReadFile(filepath.Join(lab.Root(), file))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(varying.ReplaceAllString(string(recorded), "..."), "\n")
	got := strings.Split(varying.ReplaceAllString(picture(s.lines[1:]), "..."), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("%s is not what the demo prints; run make demo FLAGS=-record=%s\nfrom line %d\nfile: %q\ndemo: %q",
				file, file, i+1, want[min(i, len(want)):], got[min(i, len(got)):])
		}
	}
}
