package retention

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// confirmAfter is how long a network must be inactive or unknown before that is reported,
	// because files are often replaced in several steps.
	confirmAfter = 15 * time.Second
	// slack is the least time from the last change of the configuration or the binary to the start
	// of a pod whose missing lease counts. A runtime loads a new configuration with a delay.
	slack = 5 * time.Second
)

// The reasons of the states of a network, beside those of package cniconf.
const (
	// PodWithoutLease: the configuration names leasehold, and an annotated pod has an address
	// without a lease. The runtime uses other directories, or a RuntimeClass with a configuration
	// of its own: correct --cni-conf-dir and --cni-bin-dir.
	PodWithoutLease = "PodWithoutLease"
)

// judge decides which statuses are reported. It combines the results of all checks so far. A check
// is one call of UseWatcher.look; it returns one status for each network.
type judge struct {
	confirmed []cniconf.Status    // nil before the first result
	looked    time.Time           // when date was last called; zero before the first call
	offSince  time.Time           // since when a network has not been active; zero if all are
	evidence  map[string]evidence // by network
}

// evidence is the state of the files that determine the status of a network, and since when the
// network has had this status.
type evidence struct {
	file, binary   string
	changed, since time.Time
}

// date sets Since of each status to the time when the files of its network took effect. cniconf
// sets it to the time when the files were last changed, which is not the same: a file that is
// loaded because another file was removed takes effect only now. date does not change the status of
// a network that is unknown, and keeps the former evidence of that network.
func (j *judge) date(statuses []cniconf.Status, now time.Time) {
	known := map[string]evidence{}
	for i := range statuses {
		s := &statuses[i]
		before, found := j.evidence[s.Network]
		e := evidence{file: s.File, binary: s.Binary, changed: s.Since, since: s.Since}
		switch {
		case s.State == cniconf.Unknown: // a file could not be read, and might not have changed
			if found {
				known[s.Network] = before
			}
			continue
		case found && before.file == e.file && before.binary == e.binary && before.changed.Equal(e.changed):
			e.since = before.since
		case !j.looked.IsZero() && s.Since.Before(j.looked):
			e.since = now
		}
		s.Since, known[s.Network] = e.since, e
	}
	j.evidence, j.looked = known, now
}

// add records the statuses of a check, and reports whether j.confirmed has changed. If the status
// of a network is inactive or unknown, j.confirmed stays until that has been so for confirmAfter;
// all networks have this delay in common. add sets a zero Since to the beginning of the delay, and
// keeps the slice.
func (j *judge) add(statuses []cniconf.Status, now time.Time) (changed bool) {
	if !slices.ContainsFunc(statuses, isOff) {
		j.offSince = time.Time{}
	} else if j.offSince.IsZero() {
		j.offSince = now
	}
	if !j.offSince.IsZero() && now.Sub(j.offSince) < confirmAfter {
		return false
	}
	for i := range statuses {
		if statuses[i].Since.IsZero() {
			statuses[i].Since = j.offSince
		}
	}
	changed = j.confirmed == nil || !slices.EqualFunc(j.confirmed, statuses, same)
	j.confirmed = statuses
	return changed
}

// isOff reports whether a network is inactive or unknown.
func isOff(s cniconf.Status) bool { return s.State != cniconf.Active }

// same reports whether two statuses are equal except for Since.
func same(a, b cniconf.Status) bool {
	a.Since = b.Since
	return reflect.DeepEqual(a, b)
}

// wants reports whether a pod requests retention with a valid window, and needs a sandbox with its
// own network.
func wants(p Pod) bool {
	return p.Expected && p.Window > 0
}

// podsIn returns a function that reports whether a pod has one of the leases: one that names it, in
// whichever state, or a bound one of one of its addresses. A lease that was recovered after the
// loss of the store may lack the pod's name and UID.
func podsIn(leases []lease.Lease) func(Pod) bool {
	type pod struct{ namespace, name, uid string }
	byPod, byAddress := map[pod]bool{}, map[string]bool{}
	for _, l := range leases {
		byPod[pod{l.Namespace, l.Name, l.UID}] = true
		if l.State == lease.Bound {
			byAddress[l.Address.String()] = true
		}
	}
	return func(p Pod) bool {
		return byPod[pod{p.Namespace, p.Name.Name, p.UID}] ||
			slices.ContainsFunc(p.IPs, func(ip string) bool { return byAddress[ip] })
	}
}

// notUsed makes a status Inactive because of a pod without a lease, which proves that the runtime
// does not use the configuration that was read. The status is that of the network of the pod's
// first interface, the first one.
func notUsed(s *cniconf.Status, pod Pod) {
	s.State, s.Reason = cniconf.Inactive, PodWithoutLease
	s.Message = fmt.Sprintf("%s, but pod %s, started %s, has %s without a lease; the runtime may use other "+
		"directories: set --cni-conf-dir and --cni-bin-dir to those of the runtime", s.Message, pod.Name,
		pod.Started.UTC().Format(time.RFC3339), pod.IPs[0])
}
