// Package active watches whether leasehold is in use on a node: whether the configuration that the
// container runtime loads leads to leasehold's plugin, and whether pods that ask for their
// addresses to be kept have leases. While it is not in use it says so with Events, a metric and a
// log line, each naming the file and what it says.
//
// It judges the node, not the agent: the agent stays ready.
package active

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// confirmAfter is how long a network has to be found inactive, or unknown, before that is
	// reported: files are replaced in several steps. So long a pod has to be without a lease, too.
	confirmAfter = 15 * time.Second
	// slack is how much later than the configuration and the binary a pod must have started for
	// its lack of a lease to count: a runtime loads a new configuration with a delay.
	slack = 5 * time.Second
)

// The reasons that a look at the pods adds to those of cniconf.
const (
	// PodWithoutLease: a pod has an address that leasehold did not assign, although the
	// configuration leads to leasehold.
	PodWithoutLease = "PodWithoutLease"
	// LeasesUnreadable: whether the pods have leases is not known.
	LeasesUnreadable = "LeasesUnreadable"
)

// judge decides what is reported, from one look after the other.
type judge struct {
	confirmed []cniconf.Status
	hasResult bool
	looked    time.Time            // the last look
	offSince  time.Time            // when the first look in a row found a network that is not active
	evidence  map[string]evidence  // by network
	missing   map[string]time.Time // pods without a lease, by UID: since when
}

// evidence is when the files that decide about a network became what they are.
type evidence struct {
	state [32]byte
	since time.Time
}

// date replaces the times of the statuses by the times at which their files got the content that
// they have: a file that is written again with the same content has not changed, and one that is
// loaded because another was removed is as new as that.
func (j *judge) date(statuses []cniconf.Status, now time.Time) {
	known := map[string]evidence{}
	for i := range statuses {
		s := &statuses[i]
		before, found := j.evidence[s.Network]
		switch {
		case s.State == cniconf.Unknown: // something was not read: it may not have changed
			if found {
				known[s.Network] = before
			}
			continue
		case found && before.state == s.Identity:
			s.Since = before.since
		case !j.looked.IsZero() && s.Since.Before(j.looked):
			s.Since = now
		}
		known[s.Network] = evidence{s.Identity, s.Since}
	}
	j.evidence, j.looked = known, now
}

// add takes the result of a look, and reports whether what is reported has changed.
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
	changed = !j.hasResult || !slices.EqualFunc(j.confirmed, statuses, same)
	j.confirmed, j.hasResult = statuses, true
	return changed
}

func isOff(s cniconf.Status) bool { return s.State != cniconf.Active }

// same reports whether two statuses say the same, except for the times.
func same(a, b cniconf.Status) bool {
	a.Since, a.Identity = b.Since, b.Identity
	return a == b
}

// candidates returns the pods that must have a lease: they ask for their address to be kept, have
// one, and started after the files that decide became what they are.
func candidates(pods []podcache.Pod, since time.Time) []podcache.Pod {
	var out []podcache.Pod
	for _, p := range pods {
		if wants(p) && len(p.IPs) > 0 && p.Started.After(since.Add(slack)) {
			out = append(out, p)
		}
	}
	return out
}

// wants reports whether a pod asks for its address to be kept.
func wants(p podcache.Pod) bool {
	w, err := retention.Decide(p)
	return p.Expected && p.HasAnnotation && err == nil && w.Window > 0
}

// withoutLease returns the pods for which there is no lease, neither one of the pod nor, as after a
// lost store, one of its address.
func withoutLease(pods []podcache.Pod, leases []lease.Lease) []podcache.Pod {
	type pod struct{ namespace, name, uid string }
	byPod, byAddress := map[pod]bool{}, map[netip.Addr]bool{}
	for _, l := range leases {
		byPod[pod{l.Namespace, l.Name, l.UID}] = true
		byAddress[l.Address] = byAddress[l.Address] || l.State == lease.Bound
	}
	var out []podcache.Pod
	for _, p := range pods {
		found := byPod[pod{p.Namespace, p.Name.Name, p.UID}]
		for _, ip := range p.IPs {
			a, err := netip.ParseAddr(ip)
			found = found || err == nil && byAddress[a.Unmap()]
		}
		if !found {
			out = append(out, p)
		}
	}
	return out
}

// lasting returns those of the pods that have been without a lease for confirmAfter. Nothing else
// has to be waited for then.
func (j *judge) lasting(pods []podcache.Pod, now time.Time) []podcache.Pod {
	missing := map[string]time.Time{}
	var out []podcache.Pod
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

// podsOff changes the status of the network of the pods' first interface: one pod without a lease
// at least shows that the runtime does not do what its files say.
func podsOff(statuses []cniconf.Status, pods []podcache.Pod) {
	first, s := pods[0], &statuses[0]
	s.State, s.Reason = cniconf.Inactive, PodWithoutLease
	s.Message = fmt.Sprintf("%s, but pod %s, started %s, has %s without a lease; the runtime may use other "+
		"directories: set --cni-conf-dir and --cni-bin-dir to those of the runtime", s.Message, first.Name,
		first.Started.UTC().Format(time.RFC3339), first.IPs[0])
}
