// Command mutants plants faults of one line in the packages that promises rest on, one at a time,
// and runs what tests them: a fault that no test notices is a rule that nothing holds.
//
// A fault is drawn by a seed: a comparison or a boundary changed, a condition negated or a part of
// it dropped, a call or a sync skipped, two arguments of one type swapped, a field forgotten, an
// error ignored, a zero value returned. It is planted with the go command's -overlay, and drawn
// again if it does not compile. The tests run in a copy of the tree, for a program with a fault may
// write where it should not. Code that only words messages is left out.
//
// First the package's own tests run, then those that test it from outside, until one fails; one
// that hangs has failed. What survives is printed as it was and as it is. equivalent.txt lists
// faults that are argued to change nothing.
//
// The exit status says whether it could run: the figures are the result.
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

// atLeast is how many faults every package gets.
const atLeast = 3

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "draw the same faults again")
	n := flag.Int("n", 100, "how many `faults`")
	only := flag.String("package", "", "only packages that match the `regexp`, such as ^pkg/ipam$")
	which := flag.String("fault", "", "of these faults, only those that match the `regexp`, such as store.go:243")
	list := flag.Bool("list", false, "print the faults and run nothing")
	short := flag.Bool("short", false,
		"leave out the tests of the programs, by which some of what survives then would be noticed")
	workers := flag.Int("j", 2, "how many faults are tried at the same time")
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
			fmt.Printf("equivalent.txt: %s %s is not there (any more)\n", k.pkg, k.function)
		}
	}
	fmt.Printf("seed %d: %d faults in %d packages\n", seed, n, len(packages))
	dice := rand.New(rand.NewPCG(seed, 0))
	var faults []*fault
	for i, quota := range share(dice, packages, n) {
		faults = append(faults, packages[i].drawAll(dice, quota)...)
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

// share says how many faults each package gets: a few at least, and the rest by how much code it
// has.
func share(dice *rand.Rand, packages []*pack, n int) []int {
	quotas := make([]int, len(packages))
	sites := 0
	for i, p := range packages {
		quotas[i] = min(atLeast, n/len(packages))
		sites += len(p.sites)
	}
	for range n - sum(quotas) {
		at := dice.IntN(sites)
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

// A result is what became of one fault.
type result struct {
	*fault
	killer string // the step that failed; "" if none did
	own    bool   // it was the package's own tests
	hung   bool
	reason string // why it changes nothing; "" if nobody argues that it does not
	took   time.Duration
}

// try plants the faults, package by package, so that what one compiles serves the next. First all
// of them meet the tests of packages; those that survive meet those of the programs, which take
// longer.
func try(packages []*pack, faults []*fault, known []equivalent, workers int) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer remove(dir)
	t := &tester{dir: dir, steps: map[string]*step{}}
	targets := map[string]target{}
	for _, p := range packages {
		targets[p.dir] = p.target
	}
	var mu sync.Mutex // of results and of what is printed
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

// inParallel runs jobs until one fails, whose error it returns.
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
		return "the same"
	}
	return survived
}

func report(packages []*pack, results []result) {
	for _, verdict := range []string{"the same", survived} {
		for _, r := range results {
			if r.verdict() == verdict {
				fmt.Printf("\n%s %s\n\t- %s\n\t+ %s\n", verdict, r.fault, r.before, r.after)
				if r.reason != "" {
					fmt.Printf("\t%s\n", r.reason)
				}
			}
		}
	}
	fmt.Printf("\n%-24s%8s%8s%10s%10s%8s%10s%10s\n", "package", "faults", "killed", "by itself", "outside", "hung",
		"the same", "survived")
	var all [7]int
	for _, p := range packages {
		var row [7]int
		for _, r := range results {
			if r.pkg != p.dir {
				continue
			}
			for i, is := range []bool{true, r.killer != "", r.own && !r.hung, r.killer != "" && !r.own && !r.hung,
				r.hung,
				r.verdict() == "the same", r.verdict() == survived} {
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
	fmt.Printf("%-24s%8d%8d%10d%10d%8d%10d%10d\n", strings.TrimPrefix(name, "pkg/"), row[0], row[1], row[2], row[3],
		row[4], row[5], row[6])
}
