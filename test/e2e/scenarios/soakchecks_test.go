package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
			s.seePod(ctx, k, p, now)
		}
		for name, k := range known {
			if !names[name] && now.Sub(k.alive) > time.Hour {
				delete(known, name)
			}
		}
	})
}

// seePod compares a pod with what was known of its name.
func (s *soakRun) seePod(ctx context.Context, k *soakPod, p corev1.Pod, now time.Time) {
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
		case s.superseded(ctx, p):
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

// watchLeases checks that the nodes' stores, what is published, and the pods agree. They may
// differ for a while.
func (s *soakRun) watchLeases(ctx context.Context) {
	since := map[string]time.Time{}
	reported := map[string]bool{}
	every(ctx, 20*time.Second, func(now time.Time) {
		found, err := s.differences(ctx)
		if err != nil {
			s.failed("comparisons that failed", err)
			return // what could not be read is not evidence of anything
		}
		s.count("comparisons of stores, objects and pods")
		for d := range since {
			if !slices.Contains(found, d) {
				delete(since, d)
			}
		}
		for _, d := range found {
			if since[d].IsZero() {
				since[d] = now
			}
			if now.Sub(since[d]) > soakPatience && !reported[d] {
				reported[d] = true
				s.violated("since %v: %s", now.Sub(since[d]).Round(time.Second), d)
			}
		}
	})
}

// differences returns where the stores, the published objects and the pods differ.
func (s *soakRun) differences(ctx context.Context) (found []string, err error) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	leases := map[string][]inspect.Lease{}
	for _, node := range s.nodes {
		if s.Cluster.PID(node) == 0 {
			return nil, errors.New(node + " is off")
		}
		if leases[node], err = inspect.Leases(ctx, s.Cluster.Machine(node), s.Cluster.Leasectl(), true); err != nil {
			return nil, err
		}
	}
	list, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	published, err := inspect.Reservations(ctx, s.Dynamic, s.NS)
	if err != nil {
		return nil, err
	}
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		pods[string(p.UID)] = p
	}
	for _, node := range s.nodes {
		bound, held := int64(0), int64(0)
		users := map[string]string{}
		kept, seen := map[string]string{}, map[string]string{}
		for _, l := range leases[node] {
			switch until, err := time.Parse(time.RFC3339, l.Until); {
			case l.State == "Bound":
				bound++
				users[l.Address] = l.UID
				if pods[l.UID].Spec.NodeName != node {
					add("%s has %s bound to %s (%s), which is not there", node, l.Address, l.Pod, l.UID)
				}
			case l.Firm:
				held++
				if err != nil || time.Since(until) > 30*time.Second {
					add("%s holds %s for %s until %s", node, l.Address, l.Pod, l.Until)
				}
			}
			if l.Namespace == s.NS && isKept(l) {
				kept[l.Pod] += l.Address + " " + l.State
			}
		}
		for _, p := range pods {
			if p.Spec.NodeName == node && !p.Spec.HostNetwork && ready(p) && p.DeletionTimestamp == nil &&
				users[p.Status.PodIP] != string(p.UID) {
				add("%s has %s, which the store of %s has for %q", p.Name, p.Status.PodIP, node, users[p.Status.PodIP])
			}
		}
		for _, r := range published {
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
		pool, err := inspect.ReadNodeAddressPool(ctx, s.Dynamic, node)
		if err != nil {
			return nil, err
		}
		if c := pool.Status.Counts; c.Bound != bound || c.Held != held || c.Size != c.Bound+c.Held+c.Free {
			add("the NodeAddressPool of %s does not match its store", node)
		}
	}
	return found, nil
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// empty returns an error as long as an address of the soak's pods is bound, held or published.
func (s *soakRun) empty() error {
	for _, node := range s.nodes {
		leases, err := inspect.Leases(s.Ctx, s.Cluster.Machine(node), s.Cluster.Leasectl(), true)
		if err != nil {
			return err
		}
		for _, l := range leases {
			if l.Namespace == s.NS && (l.State == "Bound" || l.Firm) {
				return fmt.Errorf("%s has %s %s for %s until %s", node, l.Address, l.State, l.Pod, l.Until)
			}
		}
	}
	if left, err := inspect.Reservations(s.Ctx, s.Dynamic, s.NS); err != nil || len(left) > 0 {
		return fmt.Errorf("%d reservations are left: %w", len(left), err)
	}
	found, err := s.differences(s.Ctx)
	if err == nil && len(found) > 0 {
		err = errors.New(strings.Join(found, "; "))
	}
	return err
}
