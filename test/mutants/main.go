// Command mutants runs mutation tests. It plants faults of one line, one at a time, and runs the
// tests of the package, then those of other packages that use it, until one fails or hangs. A fault
// that no test detects shows a rule without a test.
//
// Faults are drawn at random with a seed; one that does not compile is drawn again. Code that only
// composes messages is left out. equivalent.txt lists faults that do not change the behaviour. The
// working directory is a copy of the tree (scripts/mutants), because a program with a fault may
// write anywhere.
//
// The exit status reports whether the program could run, not the results.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// ofNode and ofAgent are the packages outside that test what the plugin links, and the agent's
// packages. Those that run programs are the last.
var (
	ofNode  = []string{"./pkg/ipam", "./test/explore", "./test/script", "./test/agent", "./test/crash", "./test/netns"}
	ofAgent = []string{"./test/agent", "./test/netns"}

	programs = []string{"./plugins/ipam/leasehold", "./cmd/leasectl", "./cmd/leasehold-agent"}
)

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "`seed` of the draw")
	n := flag.Int("n", 100, "number of `faults`")
	in := flag.String("package", "^pkg/(lease|pool|store|hostlocal|host|adopt|transact|ipam|maintain|cniplugin|agent|"+
		"manager)($|/)", "packages that match the `regexp`")
	list := flag.Bool("list", false, "print the faults and run no tests")
	workers := flag.Int("j", 2, "number of faults that are tested at the same time")
	only := flag.String("tests", "", "run the tests of this `package` alone, such as ./test/explore")
	flag.Parse()
	match, err := regexp.Compile(*in)
	if err == nil {
		err = run(*seed, *n, *workers, match, *only, *list)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(seed uint64, n, workers int, match *regexp.Regexp, only string, list bool) error {
	known, err := readKnown("test/mutants/equivalent.txt")
	if err != nil {
		return err
	}
	packages, err := packagesOf("./pkg/...")
	if err != nil {
		return err
	}
	linked, err := packagesOf("-deps", "./plugins/ipam/leasehold")
	if err != nil {
		return err
	}
	var sites []*fault
	for _, dir := range packages {
		if match.MatchString(dir) {
			found, err := find(dir, known)
			if err != nil {
				return err
			}
			sites = append(sites, found...)
		}
	}
	t := &tester{baselines: map[string]func() (time.Duration, error){}}
	if t.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(t.dir)
	faults := draw(rand.New(rand.NewPCG(seed, 0)), sites, n, t.compiles)
	fmt.Printf("seed %d: %d faults of %d possible ones\n", seed, len(faults), len(sites))
	if list {
		for _, f := range faults {
			fmt.Println(f)
		}
		return nil
	}
	queue := make(chan *fault)
	var group sync.WaitGroup
	var failed error
	for range workers {
		group.Go(func() {
			for f := range queue {
				began := time.Now()
				steps := append([]string{"./" + f.pkg}, ofAgent...)
				if slices.Contains(linked, f.pkg) {
					steps = append(steps[:1], ofNode...)
				} else if !strings.HasPrefix(f.pkg, "pkg/agent") {
					steps = steps[:1]
				}
				if only != "" {
					steps = []string{only}
				}
				err := t.test(f, slices.Compact(steps))
				t.mu.Lock()
				failed = errors.Join(failed, err)
				f.reason = known[f.key()]
				fmt.Printf("%4.0fs %-10s %s:%d %s: %s %s\n", time.Since(began).Seconds(), f.verdict(), f.file, f.line,
					f.function, f.kind, f.killer)
				t.mu.Unlock()
			}
		})
	}
	for _, f := range faults {
		queue <- f
	}
	close(queue)
	group.Wait()
	report(faults)
	return failed
}

// packagesOf returns the directories of packages of this module.
func packagesOf(args ...string) ([]string, error) {
	const ofMain = "-f={{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}"
	out, err := exec.Command("go", append([]string{"list", ofMain}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for dir := range strings.FieldsSeq(string(out)) {
		dirs = append(dirs, strings.TrimPrefix(dir, root+"/"))
	}
	return dirs, nil
}

// draw draws n faults that compile. It draws the kind first, because there are many more
// comparisons than syncs, and then a place. A line has one fault at most. The result depends only
// on the rng and the code.
func draw(rng *rand.Rand, sites []*fault, n int, compiles func(*fault) bool) (drawn []*fault) {
	for len(drawn) < n && len(sites) > 0 {
		var kinds []string
		for _, f := range sites {
			if !slices.Contains(kinds, f.kind) {
				kinds = append(kinds, f.kind)
			}
		}
		kind := kinds[rng.IntN(len(kinds))]
		of := slices.DeleteFunc(slices.Clone(sites), func(f *fault) bool { return f.kind != kind })
		f := of[rng.IntN(len(of))]
		ok := compiles(f)
		if ok {
			drawn = append(drawn, f)
		}
		sites = slices.DeleteFunc(slices.Clone(sites), func(o *fault) bool {
			return o == f || ok && o.file == f.file && o.line == f.line
		})
	}
	return drawn
}

func (f *fault) verdict() string {
	switch {
	case f.killer != "":
		return "killed"
	case f.reason != "":
		return "equivalent"
	}
	return "SURVIVED"
}

func report(faults []*fault) {
	counts := map[string]map[string]int{"all": {}}
	for _, f := range faults {
		if f.killer == "" {
			fmt.Printf("\n%s %s\n", f.verdict(), f)
		}
		if counts[f.pkg] == nil {
			counts[f.pkg] = map[string]int{}
		}
		counts[f.pkg][f.verdict()]++
		counts["all"][f.verdict()]++
	}
	fmt.Printf("\n%-36s%8s%12s%10s\n", "package", "killed", "equivalent", "survived")
	for _, pkg := range append(slices.Compact(pkgsOf(faults)), "all") {
		c := counts[pkg]
		fmt.Printf("%-36s%8d%12d%10d\n", pkg, c["killed"], c["equivalent"], c["SURVIVED"])
	}
}

func pkgsOf(faults []*fault) (pkgs []string) {
	for _, f := range faults {
		pkgs = append(pkgs, f.pkg)
	}
	slices.Sort(pkgs)
	return pkgs
}
