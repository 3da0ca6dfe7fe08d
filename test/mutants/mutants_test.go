package main

import (
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
		return point{}, fmt.Errorf("move: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		fmt.Println("sync:", err)
	}
	p.x = plus(p.x, by)
	ok := p.x > 0
	if ok {
		fmt.Println("moved")
	}
	return p, f.Sync()
}

func plus(a, b int) int { return a + b }

func twice(numbers ...int) (n int) {
	n, ok := len(numbers), len(numbers) > 0
	defer func() { n *= 2 }()
	if !ok {
		return 7
	}
	return n
}
`

func planted(t *testing.T) *pkgSites {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "small.go"), []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	_, exports, err := compile("fmt", "os")
	if err != nil {
		t.Fatal(err)
	}
	p, err := find(target{dir: dir}, []string{"small.go"}, token.NewFileSet(), exports, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFaultsOfASmallPackage checks every kind of fault, and that none is in messages.
func TestFaultsOfASmallPackage(t *testing.T) {
	p := planted(t)
	var got []string
	for _, f := range p.sites {
		if p.compiles(f) {
			got = append(got, f.kind+": "+f.after)
		}
	}
	want := []string{
		"comparison: if by >= 3 && by != 1 {",
		"boundary: if by <= 3 && by != 1 {",
		"boundary: if by < 3+1 && by != 1 {",
		"comparison: if by < 3 && by == 1 {",
		"comparison: ok := p.x <= 0",
		"boundary: ok := p.x >= 0",
		"boundary: ok := p.x > 0+1",
		"part of a condition: if by < 3 || by != 1 {",
		"part of a condition: if by != 1 {",
		"part of a condition: if by < 3 {",
		"zero returned: return point{}, nil",
		"missing field: return point{y: p.y + 1}, nil",
		"missing field: return point{x: p.x}, nil",
		"boundary: return point{x: p.x, y: p.y + 1+1}, nil",
		"ignored error: if err != nil && false {",
		"ignored error: return point{}, nil",
		"dropped call: ",
		"skipped sync: if err := error(nil); err != nil {",
		"missing field: ",
		"swapped arguments: p.x = plus(by, p.x)",
		"zero returned: return point{}, f.Sync()",
		"ignored error: return p, nil",
		"skipped sync: return p, error(nil)",
		"zero returned: func plus(a, b int) int { return 0 }",
		"comparison: n, ok := len(numbers), len(numbers) <= 0",
		"boundary: n, ok := len(numbers), len(numbers) >= 0",
		"boundary: n, ok := len(numbers), len(numbers) > 0+1",
		"dropped call: ",
		"negated condition: if ok {",
		"zero returned: return 0",
		"zero returned: return 0",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// TestPlantedFaults plants all faults of a package that tests two of its functions, and runs its
// tests with each.
func TestPlantedFaults(t *testing.T) {
	t.Chdir(t.TempDir())
	const test = `package small

import "testing"

func TestPlus(t *testing.T) {
	if plus(1, 2) != 3 {
		t.Fail()
	}
}

func TestTwice(t *testing.T) {
	if twice(5, 6) != 4 || twice(5) != 2 || twice() != 14 {
		t.Fail()
	}
}
`
	files := map[string]string{"go.mod": "module small\n\ngo 1.26\n", "small.go": small, "small_test.go": test}
	for file, text := range files {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packages, err := load([]target{{dir: "."}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := packages[0]
	faults := slices.DeleteFunc(slices.Clone(p.sites), func(f *fault) bool { return !p.compiles(f) })
	tester, err := newTester(t.TempDir(), packages, faults)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		r, err := tester.test(f, []string{"./."})
		want := map[string]string{"plus": "./. TestPlus", "twice": "./. TestTwice"}[f.function]
		if err != nil || r.killer != want {
			t.Errorf("%s: got %q, %v; want %q", f, r.killer, err, want)
		}
	}
}

func TestDrawDependsOnTheSeed(t *testing.T) {
	all := planted(t)
	drawn := func(seed uint64) (out []string) {
		p, rng, lines := *all, rand.New(rand.NewPCG(seed, 0)), map[int]bool{}
		p.sites = slices.Clone(all.sites)
		for f := p.draw(rng); f != nil; f = p.draw(rng) {
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
