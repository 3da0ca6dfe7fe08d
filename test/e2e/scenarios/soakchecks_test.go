package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// A soakPod is what is known of a pod's name.
type soakPod struct {
	uid     types.UID
	address string
	node    string
	alive   time.Time // when the pod was last seen with its address
	unready time.Time // since when it is not Ready, zero if it is
	stuck   bool      // this was reported
	fresh   bool      // the pod with this UID has not been seen with an address
}

// watchPods checks that pods return to their addresses, and that none is stuck.
func (s *soakRun) watchPods(ctx context.Context) {
	known := map[string]*soakPod{}
	every(ctx, 2*time.Second, func(now time.Time) {
		list, err := s.Client.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			s.failed("lists of pods that failed", err)
			return
		}
		names := map[string]bool{}
		for _, p := range list.Items {
			names[p.Name] = true
			k := known[p.Name]
			if k == nil {
				k = &soakPod{}
				known[p.Name] = k
			}
			s.seePod(k, p, now, func() bool { return s.superseded(ctx, p) })
		}
		for name, k := range known {
			if !names[name] && now.Sub(k.alive) > time.Hour {
				delete(known, name)
			}
		}
	})
}

// seePod compares a pod with what was known of its name. superseded reports whether the pod had to
// get another address.
func (s *soakRun) seePod(k *soakPod, p corev1.Pod, now time.Time, superseded func() bool) {
	if p.UID != k.uid {
		if k.uid != "" {
			s.count("pods that replaced one of the same name")
		} else {
			s.count("pods of a new name")
		}
		k.uid, k.unready, k.stuck, k.fresh = p.UID, time.Time{}, false, true
	}
	switch {
	case ready(p) || p.DeletionTimestamp != nil:
		k.unready = time.Time{}
	case k.unready.IsZero():
		k.unready = now
	case now.Sub(k.unready) > soakStuck && !k.stuck:
		k.stuck = true
		s.violated("%s on %q is not Ready since %v: %s %s", p.Name, p.Spec.NodeName, soakStuck, p.Status.Phase,
			p.Status.Message)
	}
	if p.Spec.NodeName != "" && p.Spec.NodeName != k.node {
		if k.node != "" {
			s.count("pods that moved to another node")
		}
		k.node, k.address = p.Spec.NodeName, ""
	}
	if p.Status.PodIP == "" || p.Status.Phase != corev1.PodRunning {
		return
	}
	if window, err := time.ParseDuration(p.Annotations[Window]); err == nil && k.address != "" && k.alive.Before(now) {
		switch away := now.Sub(k.alive); {
		case p.Status.PodIP == k.address:
			if k.fresh {
				s.count("windowed pods that kept the address")
			}
		case away > window:
			s.count("windowed pods that returned after the window")
		case superseded():
			s.count("windowed pods whose former sandbox outlived busyTimeout")
		default:
			s.violated("%s had %s on %s, was away for at most %v, and has %s", p.Name, k.address, k.node, away,
				p.Status.PodIP)
		}
	}
	k.address, k.alive, k.fresh = p.Status.PodIP, now, false
}

// superseded reports whether the node's journal says that the pod got another address because its
// former sandbox did not end.
func (s *soakRun) superseded(ctx context.Context, p corev1.Pod) bool {
	entries, err := inspect.History(ctx, s.Cluster.Machine(p.Spec.NodeName), s.Cluster.Leasectl())
	s.failed("journals that could not be read", err)
	return slices.ContainsFunc(entries, func(e inspect.Entry) bool {
		return e.Namespace == p.Namespace && e.Pod == p.Name && e.Event == "Superseded" &&
			time.Since(e.Time) < 10*time.Minute
	})
}

// watchLeases checks that the nodes' stores, what is published, and the pods agree.
func (s *soakRun) watchLeases(ctx context.Context) {
	lasting := soakLasting{since: map[string]time.Time{}, reported: map[string]bool{}}
	every(ctx, 20*time.Second, func(now time.Time) {
		v, err := s.view(ctx)
		if err != nil {
			s.failed("comparisons that failed", err)
			return // what could not be read is not evidence of anything
		}
		s.count("comparisons of stores, objects and pods")
		for _, d := range lasting.over(v.differences(now), now) {
			s.violated("for %v: %s", soakPatience, d)
		}
	})
}

// soakLasting finds what lasts. Stores, objects and pods may differ for a while.
type soakLasting struct {
	since    map[string]time.Time
	reported map[string]bool
}

// over returns what has been found each time for longer than soakPatience, once.
func (l *soakLasting) over(found []string, now time.Time) (lasting []string) {
	maps.DeleteFunc(l.since, func(d string, _ time.Time) bool { return !slices.Contains(found, d) })
	for _, d := range found {
		if l.since[d].IsZero() {
			l.since[d] = now
		}
		if now.Sub(l.since[d]) > soakPatience && !l.reported[d] {
			l.reported[d] = true
			lasting = append(lasting, d)
		}
	}
	return lasting
}

// A soakView is what the nodes' stores and the API have at about one moment.
type soakView struct {
	namespace string                     // of the soak's pods
	leases    map[string][]inspect.Lease // by node
	pools     map[string]inspect.Counts  // by node
	pods      map[string]corev1.Pod      // by UID, of all namespaces
	published []inspect.Reservation
}

func (s *soakRun) view(ctx context.Context) (v soakView, err error) {
	v = soakView{namespace: s.NS, leases: map[string][]inspect.Lease{}, pools: map[string]inspect.Counts{},
		pods: map[string]corev1.Pod{}}
	for _, node := range s.nodes {
		if s.Cluster.PID(node) == 0 {
			return v, errors.New(node + " is off")
		}
		if v.leases[node], err = inspect.Leases(ctx, s.Cluster.Machine(node), s.Cluster.Leasectl(), true); err != nil {
			return v, err
		}
		pool, err := inspect.ReadNodeAddressPool(ctx, s.Dynamic, node)
		if err != nil {
			return v, err
		}
		v.pools[node] = pool.Status.Counts
	}
	list, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return v, err
	}
	for _, p := range list.Items {
		v.pods[string(p.UID)] = p
	}
	v.published, err = inspect.Reservations(ctx, s.Dynamic, s.NS)
	return v, err
}

// differences returns where the stores, the published objects and the pods differ.
func (v soakView) differences(now time.Time) (found []string) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for node, leases := range v.leases {
		bound, held := int64(0), int64(0)
		users := map[string]string{} // UIDs by address
		kept, seen := map[string]string{}, map[string]string{}
		for _, l := range leases {
			switch until, err := time.Parse(time.RFC3339, l.Until); {
			case l.State == "Bound":
				bound++
				users[l.Address] = l.UID
				if v.pods[l.UID].Spec.NodeName != node {
					add("%s has %s bound to %s (%s), which is not there", node, l.Address, l.Pod, l.UID)
				}
			case l.Firm:
				held++
				if err != nil || now.Sub(until) > 30*time.Second {
					add("%s holds %s for %s until %s", node, l.Address, l.Pod, l.Until)
				}
			}
			if l.Namespace == v.namespace && isKept(l) {
				kept[l.Pod] += l.Address + " " + l.State
			}
		}
		for uid, p := range v.pods {
			if p.Spec.NodeName == node && !p.Spec.HostNetwork && ready(p) && p.DeletionTimestamp == nil &&
				users[p.Status.PodIP] != uid {
				add("%s has %s, which the store of %s has for %q", p.Name, p.Status.PodIP, node, users[p.Status.PodIP])
			}
		}
		for _, r := range v.published {
			if r.Spec.NodeName == node {
				for _, a := range r.Status.Addresses {
					seen[r.Spec.PodName] += a.Address + " " + r.Status.State
				}
			}
		}
		for pod := range merged(kept, seen) {
			if kept[pod] != seen[pod] {
				add("%s has %q of %s, published is %q", node, kept[pod], pod, seen[pod])
			}
		}
		if c := v.pools[node]; c.Bound != bound || c.Held != held || c.Size != c.Bound+c.Held+c.Free {
			add("the NodeAddressPool of %s does not match its store", node)
		}
	}
	return found
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// empty returns an error as long as an address of the soak's pods is bound, held or published.
func (s *soakRun) empty() error {
	v, err := s.view(s.Ctx)
	if err != nil {
		return err
	}
	found := v.differences(time.Now())
	for node, leases := range v.leases {
		for _, l := range leases {
			if l.Namespace == s.NS && (l.State == "Bound" || l.Firm) {
				found = append(found, fmt.Sprintf("%s has %s %s for %s", node, l.Address, l.State, l.Pod))
			}
		}
	}
	if len(v.published) > 0 {
		found = append(found, fmt.Sprintf("%d reservations are left", len(v.published)))
	}
	if len(found) > 0 {
		return errors.New(strings.Join(found, "; "))
	}
	return nil
}
