package differential

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) {
	err := error(nil)
	if os.Getenv(worldVar) != "" {
		err = serve()
	} else {
		err = lab.Build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(worldVar) == "" {
		os.Exit(m.Run())
	}
}

// worlds are the machines of both programs.
var worlds = sync.OnceValues(func() (w [2]*world, err error) {
	for i, program := range []string{"host-local", "leasehold"} {
		if w[i], err = newWorld(program); err != nil {
			return w, err
		}
	}
	return w, nil
})

// compare makes the calls on two machines that were never used, until they differ. It returns the
// exchanges.
func compare(t *testing.T, calls []Call) (done []Exchange) {
	t.Helper()
	w, err := worlds()
	both := func(do func(i int, w *world) error) {
		var wg sync.WaitGroup
		var errs [2]error
		for i := range w {
			wg.Go(func() { errs[i] = do(i, w[i]) })
		}
		wg.Wait()
		for _, err := range errs {
			must.Succeed(t, err)
		}
	}
	must.Succeed(t, err)
	both(func(_ int, w *world) error { return w.reset() })
	for _, c := range calls {
		if c.Prev > 0 && c.Prev <= len(done) {
			c.Stdin = c.withPrev(done[c.Prev-1].Leasehold.Stdout)
		}
		c.Prev = 0
		e := Exchange{Call: c}
		replies := [2]*Reply{&e.HostLocal, &e.Leasehold}
		both(func(i int, w *world) (err error) { *replies[i], err = w.call(c); return err })
		if done = append(done, e); e.difference() != "" || e.wrong(done[:len(done)-1]) != "" {
			break
		}
	}
	return done
}

// explained returns the rows of the table that explain a difference of the last exchange.
func explained(t *testing.T, done []Exchange) (rows []int) {
	t.Helper()
	past, last := done[:len(done)-1], done[len(done)-1]
	var calls []Call
	var changed []int
	for n, p := range past {
		same := true
		for i, d := range Differences {
			if d.instead == nil {
				continue
			}
			if other, isOther := d.instead(past[:n], p); isOther {
				calls, changed, same = append(calls, other...), append(changed, i), false
			}
		}
		if same {
			calls = append(calls, p.Call)
		}
	}
	for i, d := range Differences {
		if d.explains != nil && d.explains(past, last) {
			rows = append(rows, i)
		}
	}
	if len(rows) > 0 || len(changed) == 0 {
		return rows
	}
	calls = append(calls, last.Call)
	again := compare(t, calls)
	switch {
	case problem(t, again) != "":
		return nil
	case len(again) < len(calls): // what another row is about was not seen before, because both did the same
		return append(changed, explained(t, again)...)
	case isSame(again[len(again)-1].Leasehold, last.Leasehold):
		return changed
	}
	return nil
}

// isSame reports whether two replies are the same. Errors may differ.
func isSame(a, b Reply) bool { return a.ok() == b.ok() && (!a.ok() || a.Stdout == b.Stdout) }

// problem returns what is wrong with the last exchange, "" if nothing is.
func problem(t *testing.T, done []Exchange) string {
	t.Helper()
	last := done[len(done)-1]
	if wrong := last.wrong(done[:len(done)-1]); wrong != "" {
		return wrong
	}
	if diff := last.difference(); diff != "" && len(explained(t, done)) == 0 {
		return "no row of the table explains that " + diff
	}
	return ""
}

func text(done []Exchange) string {
	var out []string
	for i, e := range done {
		out = append(out, fmt.Sprintf("%d: %s", i+1, e))
	}
	return strings.Join(out, "\n")
}

// verify compares a sequence of calls. If it has a problem, verify fails with the shortest one that
// has, and reports false.
func verify(t *testing.T, calls []Call) (done []Exchange, ok bool) {
	t.Helper()
	done = compare(t, calls)
	why := problem(t, done)
	if why == "" {
		return done, true
	}
	for i := len(done) - 2; i >= 0; i-- {
		shorter := slices.Delete(slices.Clone(calls[:len(done)]), i, i+1)
		for j := range shorter {
			switch {
			case shorter[j].Prev == i+1:
				shorter[j].Prev = 0
			case shorter[j].Prev > i+1:
				shorter[j].Prev--
			}
		}
		again := compare(t, shorter)
		if other := problem(t, again); other != "" {
			calls, done, why = shorter, again, other
		}
	}
	t.Errorf("%s\n%s", why, text(done))
	return done, false
}

// TestDifferences compares the examples of each row of the table, which must meet the row.
func TestDifferences(t *testing.T) {
	for i, d := range Differences {
		t.Run(d.Call, func(t *testing.T) {
			for _, calls := range [][]Call{d.example, d.another} {
				if calls == nil {
					continue
				}
				done, _ := verify(t, calls)
				last := done[len(done)-1]
				if len(done) < len(calls) || last.difference() == "" || !slices.Contains(explained(t, done), i) {
					t.Errorf("no difference of this row\n%s", text(done))
				}
			}
		})
	}
}

// TestCallers compares the calls of real runtimes, in which nothing may differ.
func TestCallers(t *testing.T) {
	for name, calls := range callers {
		t.Run(name, func(t *testing.T) {
			done, _ := verify(t, calls)
			if diff := done[len(done)-1].difference(); diff != "" {
				t.Errorf("%s\n%s", diff, text(done))
			}
		})
	}
}

// TestCalls compares drawn sequences of calls: a few, those of SEEDS, or as many as there are in
// HOURS hours. A seed is a text from which the calls follow, so that it repeats a failure.
func TestCalls(t *testing.T) {
	compare := func(seed string) {
		if _, ok := verify(t, Draw([]byte(seed))); !ok {
			t.Errorf("repeat it with SEEDS=%s", seed)
		}
	}
	hours, _ := strconv.ParseFloat(os.Getenv("HOURS"), 64)
	switch seeds := strings.Fields(os.Getenv("SEEDS")); {
	case len(seeds) > 0:
		for _, seed := range seeds {
			compare(seed)
		}
	case hours > 0:
		first, n := time.Now().Unix(), 0
		t.Logf("the seeds are %d.0 and so on", first)
		for end := time.Now().Add(time.Duration(hours * float64(time.Hour))); time.Now().Before(end); n++ {
			compare(fmt.Sprintf("%d.%d", first, n))
		}
		t.Logf("%d sequences of calls", n)
	default:
		for i := range 40 {
			compare(strconv.Itoa(i))
		}
	}
}
