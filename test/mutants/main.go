// Command mutants runs mutation tests. It plants faults of one line, one at a time, and runs the
// tests of the package. A fault that no test detects shows a rule without a test.
//
// Faults are drawn at random with a seed: a changed comparison or boundary, a negated condition or
// one without a part of it, a skipped call or sync, two swapped arguments of one type, a missing
// field, an ignored error, a zero value returned. One that does not compile is drawn again. All
// faults are planted at once, with the go command's -overlay, so that the tests of a package are
// compiled once; a variable chooses the fault. The tests run in a copy of the tree, because a
// program with a fault may write anywhere. Code that only composes messages is left out.
//
// The package's own tests run first, then those of other packages that use it, until one fails or
// hangs. Faults that survive are printed. equivalent.txt lists those that do not change the
// behaviour.
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
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// atLeast is the minimum number of faults of a package.
const atLeast = 3

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "`seed` of the draw")
	n := flag.Int("n", 100, "number of `faults`")
	only := flag.String("package", "", "only packages that match the `regexp`, such as ^pkg/ipam$")
	which := flag.String("fault", "", "only the drawn faults that match the `regexp`, such as store.go:243")
	list := flag.Bool("list", false, "print the faults and run no tests")
	short := flag.Bool("short", false, "leave out the tests of the programs, so that more faults survive")
	workers := flag.Int("j", 2, "number of faults that are tested at the same time")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		log.Fatalf("-package: %v", err)
	}
	faults, err := regexp.Compile(*which)
	if err != nil {
		log.Fatalf("-fault: %v", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return !match.MatchString(t.dir) })
	if *short {
		for i := range chosen {
			chosen[i].outside = slices.DeleteFunc(slices.Clone(chosen[i].outside), isOfPrograms)
		}
	}
	if err := run(*seed, *n, chosen, faults, *list, *workers); err != nil {
		log.Fatal(err)
	}
}

func run(seed uint64, n int, targets []target, which *regexp.Regexp, list bool, workers int) error {
	known, err := readKnown("test/mutants/equivalent.txt")
	if err != nil {
		return err
	}
	if !list {
		if err := enterCopy(".cache/mutants"); err != nil {
			return err
		}
	}
	packages, err := load(targets, known)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return errors.New("-package: no package matches")
	}
	for _, k := range known {
		if isStale(packages, k) {
			fmt.Printf("equivalent.txt: %s %s does not exist\n", k.pkg, k.function)
		}
	}
	fmt.Printf("seed %d: %d faults in %d packages\n", seed, n, len(packages))
	rng := rand.New(rand.NewPCG(seed, 0))
	var faults []*fault
	for i, quota := range share(rng, packages, n) {
		faults = append(faults, packages[i].drawAll(rng, quota)...)
	}
	faults = slices.DeleteFunc(faults, func(f *fault) bool { return !which.MatchString(f.String()) })
	if list {
		for _, f := range faults {
			fmt.Printf("%s\n\t- %s\n\t+ %s\n", f, f.before, f.after)
		}
		return nil
	}
	return try(packages, faults, known, workers)
}

// share returns the number of faults of each package: a minimum, and the rest in proportion to its
// code.
func share(rng *rand.Rand, packages []*pkgSites, n int) []int {
	quotas := make([]int, len(packages))
	sites := 0
	for i, p := range packages {
		quotas[i] = min(atLeast, n/len(packages))
		sites += len(p.sites)
	}
	for range n - sum(quotas) {
		at := rng.IntN(sites)
		for i, p := range packages {
			if at -= len(p.sites); at < 0 {
				quotas[i]++
				break
			}
		}
	}
	return quotas
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// A result is the result of the tests of one fault.
type result struct {
	*fault
	killer string // the step that failed; "" if none did
	own    bool   // in the package's own tests
	hung   bool
	reason string // why it is equivalent, from equivalent.txt; "" if it is not listed
	took   time.Duration
}

// try tests the faults in the order of their packages, so that build results can be reused. First
// it runs the tests of packages with all of them, then those of the programs, which take longer,
// with those that have survived. Both are in one function because they share the workers and the
// results.
func try(packages []*pkgSites, faults []*fault, known []equivalent, workers int) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer remove(dir)
	t, err := newTester(dir, packages, faults)
	if err != nil {
		return err
	}
	targets := map[string]target{}
	for _, p := range packages {
		targets[p.dir] = p.target
	}
	var mu sync.Mutex // for results and the output
	var results []result
	var jobs []func() error
	for _, f := range faults {
		jobs = append(jobs, func() error {
			r, err := t.test(f, targets[f.pkg].steps(false))
			if err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.killer == "" {
				r.reason = reasonOf(known, f)
			}
			results = append(results, r)
			r.print(len(results), len(faults))
			return nil
		})
	}
	if err := inParallel(workers, jobs); err != nil {
		return err
	}
	jobs = nil
	for i, r := range results {
		if r.verdict() != survived {
			continue
		}
		jobs = append(jobs, func() error {
			after, err := t.test(r.fault, targets[r.pkg].steps(true))
			if err != nil {
				return fmt.Errorf("%s: %w", r.fault, err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[i] = after
			if after.killer != "" {
				after.print(i+1, len(results))
			}
			return nil
		})
	}
	if err := inParallel(workers, jobs); err != nil {
		return err
	}
	report(packages, results)
	return nil
}

// inParallel runs jobs until one fails, and returns its error.
func inParallel(workers int, jobs []func() error) error {
	queue, failed := make(chan func() error), make(chan error, len(jobs))
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for job := range queue {
				if err := job(); err != nil {
					failed <- err
				}
			}
		})
	}
	for _, job := range jobs {
		if len(failed) > 0 {
			break
		}
		queue <- job
	}
	close(queue)
	group.Wait()
	close(failed)
	return <-failed
}

func (r result) print(n, of int) {
	fmt.Printf("%3d/%d %4.0fs %-9s %s %s\n", n, of, r.took.Seconds(), r.verdict(), r.fault, r.killer)
}

const survived = "SURVIVED"

func (r result) verdict() string {
	switch {
	case r.hung:
		return "hung"
	case r.killer != "":
		return "killed"
	case r.reason != "":
		return "equivalent"
	}
	return survived
}

func report(packages []*pkgSites, results []result) {
	for _, verdict := range []string{"equivalent", survived} {
		for _, r := range results {
			if r.verdict() == verdict {
				fmt.Printf("\n%s %s\n\t- %s\n\t+ %s\n", verdict, r.fault, r.before, r.after)
				if r.reason != "" {
					fmt.Printf("\t%s\n", r.reason)
				}
			}
		}
	}
	fmt.Printf("\n%-24s%8s%8s%10s%10s%8s%10s%10s\n",
		"package", "faults", "killed", "by itself", "outside", "hung", "equivalent", "survived")
	var all [7]int
	for _, p := range packages {
		var row [7]int
		for _, r := range results {
			if r.pkg != p.dir {
				continue
			}
			for i, is := range []bool{true, r.killer != "", r.own && !r.hung, r.killer != "" && !r.own && !r.hung,
				r.hung, r.verdict() == "equivalent", r.verdict() == survived} {
				if is {
					row[i]++
					all[i]++
				}
			}
		}
		printRow(p.dir, row)
	}
	printRow("all", all)
}

func printRow(name string, row [7]int) {
	fmt.Printf("%-24s%8d%8d%10d%10d%8d%10d%10d\n",
		strings.TrimPrefix(name, "pkg/"), row[0], row[1], row[2], row[3], row[4], row[5], row[6])
}
