package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRun draws the dashboard from twelve scrapes of an agent, a minute apart.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for i := range 12 {
		to := filepath.Join(dir, fmt.Sprint(1_700_000_000+60*i))
		text := fmt.Sprintf(`# TYPE leasehold_addresses gauge
leasehold_addresses{network="cbr0",state="Bound"} %d
leasehold_doubtful_leases 2
leasehold_pool_free_addresses{network="cbr0"} NaN
# TYPE leasehold_calls_total counter
leasehold_calls_total{verb="ADD",result="ok"} %d
`, 100+i, 120*i)
		if err := errors.Join(os.Mkdir(to, 0o755),
			os.WriteFile(filepath.Join(to, "leasehold-agent,node1"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "out.svg")
	if err := run(t.Context(), dir, "../dashboard.json", out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := isXML(b); err != nil {
		t.Errorf("the picture is not XML: %v", err)
	}
	picture := string(b)
	for _, want := range []string{
		"2023-11-14 22:13 to 22:24 UTC, 1 programs, scraped every 1m0s", ">Doubtful leases<", ">Bound<", ">ADD ok<",
		">No data<",
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("the picture does not have %q", want)
		}
	}
	// Two calls per second, on an axis up to 2: the line ends at the top.
	if !regexp.MustCompile(`>2 /s<`).MatchString(picture) || strings.Contains(picture, "NaN") {
		t.Error("the rate of calls is not drawn, or a value is not a number")
	}
	// The stat is orange from 1 on.
	stat := regexp.MustCompile(`fill="#ff9830"[^>]*>\s*<text[^>]*>Doubtful leases<.*\s*<text[^>]*>2<`)
	if !stat.MatchString(picture) {
		t.Error("the stat does not have its last value on the colour of its threshold")
	}
}

func isXML(b []byte) error {
	d := xml.NewDecoder(strings.NewReader(string(b)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestRunRejects(t *testing.T) {
	for name, path := range map[string]string{
		"no Unix time": "now/leasehold-agent,node1", "no instance": "1700000000/leasehold-agent",
	} {
		dir := t.TempDir()
		for _, p := range []string{path, "1700000060/leasehold-agent,node1"} {
			to := filepath.Join(dir, p)
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, nil, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		out := filepath.Join(t.TempDir(), "out.svg")
		if err := run(t.Context(), dir, "../dashboard.json", out); err == nil {
			t.Errorf("%s: %s is accepted", name, path)
		}
	}
	if err := run(t.Context(), t.TempDir(), "../dashboard.json", "out.svg"); err == nil {
		t.Error("a directory without scrapes is accepted")
	}
}

func TestNiceTop(t *testing.T) {
	for in, want := range map[float64]float64{0: 1, 0.03: 0.04, 1: 1, 7: 8, 9: 10, 253: 400} {
		if got := niceTop(in); fmt.Sprintf("%.6g", got) != fmt.Sprintf("%.6g", want) {
			t.Errorf("niceTop(%g) = %g, want %g", in, got, want)
		}
	}
}
