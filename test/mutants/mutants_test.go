package main

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const small = `package small

import (
	"fmt"
	"os"
)

type point struct{ x, y int }

func (p point) String() string { return fmt.Sprint(p.x < p.y) }

func move(p point, by int) (point, error) {
	if by < 3 && by != 1 {
		return point{x: p.x, y: p.y + 1}, nil
	}
	f, err := os.Create("f")
	if err != nil {
		return point{}, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		fmt.Println("sync:", err)
	}
	p.x = plus(p.x, by)
	return p, f.Sync()
}

func plus(a, b int) int { return a + b }

func isEven(n int) bool {
	if isOdd(n) {
		return false
	}
	return true
}

func isOdd(n int) bool { return n%2 == 1 }
`

const smallTest = `package small

import "testing"

func TestEven(t *testing.T) {
	if !isEven(2) || isEven(3) {
		t.Fail()
	}
}
`

// inSmall makes a module with one package the working directory, and returns the faults of it.
func inSmall(t *testing.T) []*fault {
	t.Helper()
	t.Chdir(t.TempDir())
	for file, text := range map[string]string{"go.mod": "module small\n\ngo 1.26\n", "small.go": small,
		"small_test.go": smallTest} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := find(".", nil)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestFaultsOfASmallPackage checks every kind of fault, and that none is in messages.
func TestFaultsOfASmallPackage(t *testing.T) {
	var got []string
	for _, f := range inSmall(t) {
		got = append(got, f.kind+": "+f.after)
	}
	want := []string{
		"comparison: if by >= 3 && by != 1 {",
		"boundary: if by <= 3 && by != 1 {",
		"comparison: if by < 3 && by == 1 {",
		"part of a condition: if by < 3 || by != 1 {",
		"part of a condition: if by != 1 {",
		"part of a condition: if by < 3 {",
		"boundary: return point{x: p.x, y: p.y}, nil",
		"ignored error: if err != nil && false {",
		"ignored error: return point{}, nil",
		"dropped call: ",
		"missing assignment: ",
		"skipped sync: return p, nil",
		"negated condition: if !isOdd(n) {",
		"other result: return true",
		"other result: return false",
		"comparison: func isOdd(n int) bool { return n%2 != 1 }",
		"ignored error: if err := f.Sync(); err != nil && false {",
		"skipped sync: if err := error(nil); err != nil {",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// TestPlantedFaults runs the tests of a package that has tests of two functions, with faults of
// three.
func TestPlantedFaults(t *testing.T) {
	faults := inSmall(t)
	tester := &tester{dir: t.TempDir(), baselines: map[string]func() (time.Duration, error){}}
	for _, f := range faults {
		if f.function == "move" || !tester.compiles(f) {
			continue
		}
		err := tester.test(f, []string{"./."})
		want := map[string]string{"isEven": "./. TestEven", "isOdd": "./. TestEven"}[f.function]
		if err != nil || f.killer != want {
			t.Errorf("%s: got %q, %v; want %q", f, f.killer, err, want)
		}
	}
}

func TestDrawDependsOnTheSeed(t *testing.T) {
	sites := inSmall(t)
	drawn := func(seed uint64) (out []string) {
		lines := map[int]bool{}
		all := func(*fault) bool { return true }
		for _, f := range draw(rand.New(rand.NewPCG(seed, 0)), sites, len(sites), all) {
			if lines[f.line] {
				t.Errorf("line %d has two", f.line)
			}
			lines[f.line] = true
			out = append(out, f.after)
		}
		return out
	}
	if a, b := drawn(1), drawn(1); !slices.Equal(a, b) || slices.Equal(a, drawn(2)) {
		t.Errorf("seed 1 drew %q and %q", a, b)
	}
}
