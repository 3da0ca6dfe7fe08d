// Package costs has what leasehold costs an API server, as measured by package pinbench, and shows
// it as a page with tables and plots.
package costs

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"
)

// The kinds of a Window.
const (
	Idle     = "idle"     // nothing is recreated
	Plain    = "plain"    // pods without leasehold's annotation are recreated
	Retained = "retained" // pods with it are recreated
)

// A Run is one measurement: a control plane, a number of nodes, and the programs of one commit.
type Run struct {
	Commit string
	// Subject is the subject of the commit.
	Subject string
	At      time.Time
	Nodes   int
	// Reservations is the number of IPReservations, Pods that of the retained pods that exist.
	Reservations, Pods int
	// Rate is the number of recreations per second.
	Rate int
	// Processors is the number of processors of the machine.
	Processors int
	// Load is the machine's load average over a minute at the end of each window, Pressure the
	// share of the window, in percent, in which something that could run waited for a processor.
	Load, Pressure []float64

	// Windows are empty if only the manager was measured.
	Windows []Window
	// Nominated are the durations from the deletion of a retained pod until its successor is
	// nominated, Running those until it runs. They are sorted.
	Nominated, Running []time.Duration
	// Admissions are the durations of the webhook's answers at AdmissionRate per second, and Pings
	// those of the manager's /healthz, requested in turn. AdmissionBusy is the share of the time,
	// in percent, in which the machine's processors were busy meanwhile.
	Admissions, Pings Spread
	AdmissionRate     int
	AdmissionBusy     float64
	// Within5ms is the share of the API server's calls of the webhook in the windows that took at
	// most 5 ms.
	Within5ms float64
	// Managers are the replicas. Started is how long they took until all were ready.
	Managers []Manager
	Started  time.Duration
	// Agents is the memory of the program with all agents in MiB, and API that of the API server.
	Agents, API int

	Accidents []Accident
}

// Spread are percentiles of durations.
type Spread struct{ P50, P99, Max time.Duration }

// A Manager is a replica: its memory in MiB before and after the load, and at most.
type Manager struct{ Resting, Loaded, Peak int }

// A Window is a time in which one kind of pod is recreated at a fixed rate.
type Window struct {
	Kind        string
	Took        time.Duration
	Recreations int
	// Processor is the processor time by program.
	Processor map[string]time.Duration
	// Requests are those of leasehold's accounts, such as "agent get nodes". Named are those of
	// them that name a retained pod that was recreated in this or an earlier window, or an
	// IPReservation or Event that is named after it.
	Requests, Named map[string]int
	// All are all requests that the API server has answered, by verb and resource.
	All map[string]int
	// Events are the watch events that the API server has sent to all clients, by resource.
	Events map[string]int
}

// An Accident is something that happens to the cluster, and what leasehold's accounts then ask.
type Accident struct {
	Name string
	// About says what was done, with numbers.
	About string
	// Agents and Managers are the requests in each second from the beginning on.
	Agents, Managers []int
	// Steady is the number of requests per second before.
	Steady float64
	// Ended is the second in which the accident had ended, such as the API server's return.
	Ended int
	// Recreated is the number of pods that were recreated before and meanwhile, of which so many
	// were nominated, and Failed of those that did not run within a minute.
	Recreated, Nominated, Failed int
	// Rejected is the number of requests since the beginning that the API server rejected because
	// it had too many or was too slow.
	Rejected int
	// Back is how many seconds after Ended all agents watched again, -1 if they did not.
	Back int
}

// Read reads the runs in a file. A file that does not exist has none.
func Read(path string) (runs []Run, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return runs, json.Unmarshal(text, &runs)
}

// Add adds a run to a file, in the place of an earlier one of the same commit and size.
func Add(path string, run Run) error {
	runs, err := Read(path)
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, func(r Run) bool {
		return r.Commit == run.Commit && r.Nodes == run.Nodes && r.Reservations == run.Reservations &&
			r.Pods == run.Pods
	})
	text, err := json.MarshalIndent(append(runs, run), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// atTarget extrapolates the requests per second after the end of an accident from a number of nodes
// to the target: the mean of the busiest minute beyond the steady state, and a peak that is four
// standard deviations above it. The requests come in pairs, a list and a watch, at random times.
func (a Accident) atTarget(nodes int) (mean, peak float64) {
	const minute = 60
	for from := a.Ended; from+minute <= len(a.Agents); from++ {
		sum := 0
		for i := from; i < from+minute; i++ {
			sum += a.Agents[i] + a.Managers[i]
		}
		mean = max(mean, float64(sum)/minute-a.Steady)
	}
	mean *= target / float64(nodes)
	return mean, mean + 4*math.Sqrt(2*mean)
}

// Most returns the largest number of requests in a second since the beginning of the accident.
func (a Accident) Most() int {
	most := 0
	for i := range a.Agents {
		most = max(most, a.Agents[i]+a.Managers[i])
	}
	return most
}
