package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/history"
	"github.com/leasehold-cni/leasehold/test/e2e/soak"
)

// hoursEnv is the environment variable with the duration of a soak in hours. A process that has it
// runs the soak instead of the scenarios.
const hoursEnv = "LEASEHOLD_SOAK"

// soakTable is the table of such a process.
var soakTable = []scenario{
	ours("soak", "pods are replaced and accidents happen for hours: promises are checked, resources recorded", soaking),
}

// soakDuration returns how long the soak has to run, 0 if this process runs scenarios.
func soakDuration() (time.Duration, error) {
	text := os.Getenv(hoursEnv)
	if text == "" {
		return 0, nil
	}
	hours, err := strconv.ParseFloat(text, 64)
	if err != nil || !(hours >= 0.05 && hours <= 1000) {
		return 0, fmt.Errorf("%s=%s: want a number of hours from 0.05 to 1000", hoursEnv, text)
	}
	return time.Duration(hours * float64(time.Hour)), nil
}

const (
	// A recreation takes this long on average, so that the machine has time for other work.
	soakPace = 2500 * time.Millisecond
	// Accidents are at least soakCalm and at most 2*soakCalm apart.
	soakCalm = 40 * time.Second
	// A difference between the store, the API and the pods that lasts longer is an error.
	soakPatience = 3 * time.Minute
	// A pod that is not Ready for longer is stuck.
	soakStuck = 8 * time.Minute
	// The longest window of a soak's pods.
	soakLongestWindow = 4 * time.Minute
)

// A soakRun is a running soak. Its goroutines call violated, because only the scenario's own may
// fail it.
type soakRun struct {
	*Test
	dir     string // for the history
	history history.Recorder
	samples soak.Samples

	mu     sync.Mutex
	counts map[string]int
	wrong  []string // violations that the scenario has not reported yet
	errors map[string]int
}

func soaking(t *Test) {
	hours, err := soakDuration()
	t.Must(err)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		t.Must(err)
	}
	s := &soakRun{Test: t, dir: filepath.Join(t.Cluster.Dir, "soak"), samples: soak.Samples{},
		counts: map[string]int{}, errors: map[string]int{}}
	t.Must(os.RemoveAll(s.dir))
	t.Must(os.MkdirAll(s.dir, 0o755))
	t.Step("%v with seed %d; what is seen is kept in %s", hours, seed, s.dir)
	t.watch.Record(&s.history)
	churn := s.workloads(rand.New(rand.NewPCG(seed, 1)))

	ctx, stop := context.WithTimeout(t.Ctx, hours)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { churn.run(ctx) })
	running.Go(func() { s.watchPods(ctx) })
	running.Go(func() { s.watchLeases(ctx) })
	running.Go(func() { s.watchSandboxes(ctx) })
	running.Go(func() { s.sample(ctx) })
	s.accidents(ctx, rand.New(rand.NewPCG(seed, 2)))
	running.Wait()
	s.report()

	t.Step("the last pods are deleted; every address has to be free when the windows have ended")
	t.Must(t.Cluster.WaitDeployed(t.Ctx, 7*time.Minute))
	t.Clear()
	t.Eventually(soakLongestWindow+2*time.Minute, "every address is free", func() error {
		err := s.empty()
		if err != nil {
			t.Sleep(5 * time.Second)
		}
		return err
	})
	t.watch.Record(nil)
	s.checkHistory()
	var table strings.Builder
	for _, text := range soak.Judge(&table, s.samples) {
		s.violated("%s", text)
	}
	t.Step("resources:\n%s", &table)
	s.report()
}

// count adds to a number in the report.
func (s *soakRun) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// violated records that a promise was not kept.
func (s *soakRun) violated(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%s  %s", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
	s.wrong = append(s.wrong, text)
	s.counts["VIOLATIONS"]++
	fmt.Println("VIOLATION", text)
}

// failed counts an error of a call. While something fails, calls have errors.
func (s *soakRun) failed(what string, err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[what]++
}

// report fails the scenario for what was violated since the last report, and logs the numbers.
func (s *soakRun) report() {
	s.checkOverlap()
	s.mu.Lock()
	wrong := s.wrong
	s.wrong = nil
	var numbers []string
	for _, m := range []map[string]int{s.counts, s.errors} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			numbers = append(numbers, fmt.Sprintf("%d %s", m[name], name))
		}
	}
	s.mu.Unlock()
	for _, text := range wrong {
		s.Errorf("%s", text)
	}
	s.Step("%s", strings.Join(numbers, ", "))
}

// every calls f until ctx is done.
func every(ctx context.Context, d time.Duration, f func(now time.Time)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			f(now)
		}
	}
}
