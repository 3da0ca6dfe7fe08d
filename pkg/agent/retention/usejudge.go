package retention

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// confirmAfter is how long a network must be inactive or unknown before that is reported,
	// because files are often replaced in several steps. It is also how long a pod must be without
	// a lease before that counts.
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
	// LeasesUnreadable: unknown, the store is lost or busy.
	LeasesUnreadable = "LeasesUnreadable"
)

// judge decides which statuses are reported. It combines the results of all checks so far. A check
// is one call of UseWatcher.look; it returns one status for each network.
type judge struct {
	confirmed []cniconf.Status     // nil before the first result
	looked    time.Time            // when date was last called; zero before the first call
	offSince  time.Time            // since when a network has not been active; zero if all are
	evidence  map[string]evidence  // by network
	missing   map[string]time.Time // by UID of a pod: since when it has had no lease
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

// candidates returns the pods that must have a lease: the pods that request retention, have an
// address, and started more than slack after since, the last change of the configuration or the
// binary.
func candidates(pods []Pod, since time.Time) []Pod {
	var out []Pod
	for _, p := range pods {
		if wants(p) && len(p.IPs) > 0 && p.Started.After(since.Add(slack)) {
			out = append(out, p)
		}
	}
	return out
}

// wants reports whether a pod requests retention with a valid window, and needs a sandbox with its
// own network.
func wants(p Pod) bool {
	w, err := decide(p)
	return p.Expected && err == nil && w.Window > 0
}

// withoutLease returns the pods that have no lease. A pod has one if a lease names it, in whichever
// state, or if one of its addresses is bound: a lease that was recovered after the loss of the
// store may lack the pod's name and UID.
func withoutLease(pods []Pod, leases []lease.Lease) []Pod {
	type pod struct{ namespace, name, uid string }
	byPod, byAddress := map[pod]bool{}, map[netip.Addr]bool{}
	for _, l := range leases {
		byPod[pod{l.Namespace, l.Name, l.UID}] = true
		if l.State == lease.Bound {
			byAddress[l.Address] = true
		}
	}
	var out []Pod
	for _, p := range pods {
		found := byPod[pod{p.Namespace, p.Name.Name, p.UID}]
		for _, ip := range p.IPs {
			a, err := netip.ParseAddr(ip)
			found = found || (err == nil && byAddress[a.Unmap()])
		}
		if !found {
			out = append(out, p)
		}
	}
	return out
}

// lasting returns those of the given pods that have been without a lease for confirmAfter, and
// remembers since when each pod has been without one. If it returns pods, it sets j.offSince back
// to the start of that time, so that add does not wait for confirmAfter again.
func (j *judge) lasting(pods []Pod, now time.Time) []Pod {
	missing := map[string]time.Time{}
	var out []Pod
	for _, p := range pods {
		since, known := j.missing[p.UID]
		if !known {
			since = now
		}
		missing[p.UID] = since
		if now.Sub(since) < confirmAfter {
			continue
		}
		out = append(out, p)
		if j.offSince.IsZero() || since.Before(j.offSince) {
			j.offSince = since
		}
	}
	j.missing = missing
	return out
}

// podsOff makes the first status Inactive because of the given pods, of which it names the first
// one. The first status is that of the network of the pods' first interface. One pod without a
// lease proves that the runtime does not use the configuration that was read.
func podsOff(statuses []cniconf.Status, pods []Pod) {
	first, s := pods[0], &statuses[0]
	s.State, s.Reason = cniconf.Inactive, PodWithoutLease
	s.Message = fmt.Sprintf("%s, but pod %s, started %s, has %s without a lease; the runtime may use other "+
		"directories: set --cni-conf-dir and --cni-bin-dir to those of the runtime", s.Message, first.Name,
		first.Started.UTC().Format(time.RFC3339), first.IPs[0])
}
