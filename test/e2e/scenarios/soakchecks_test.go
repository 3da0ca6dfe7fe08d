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

// watchPods checks that no pod is stuck.
func (s *soakRun) watchPods(ctx context.Context) {
	unready := map[types.UID]time.Time{} // since when a pod is not Ready
	every(ctx, 2*time.Second, func(now time.Time) {
		list, err := s.Client.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			s.failed("lists of pods that failed", err)
			return
		}
		for _, p := range list.Items {
			since, seen := unready[p.UID]
			if !seen {
				s.count("pods")
			}
			switch {
			case ready(p) || p.DeletionTimestamp != nil || !seen:
				unready[p.UID] = now
			case now.Sub(since) > soakStuck:
				unready[p.UID] = now.Add(time.Hour) // it is reported once
				s.violated("%s on %q is not Ready since %v: %s %s", p.Name, p.Spec.NodeName, soakStuck, p.Status.Phase,
					p.Status.Message)
			}
		}
	})
}

// watchLeases checks that the nodes' stores, what is published, and the pods agree.
func (s *soakRun) watchLeases(ctx context.Context) {
	since := map[string]time.Time{} // each difference
	every(ctx, 20*time.Second, func(now time.Time) {
		v, err := s.view(ctx)
		if err != nil {
			s.failed("comparisons that failed", err)
			return // what could not be read is not evidence of anything
		}
		s.count("comparisons of stores, objects and pods")
		found := v.differences(now)
		maps.DeleteFunc(since, func(d string, _ time.Time) bool { return !slices.Contains(found, d) })
		for _, d := range found {
			switch began, seen := since[d]; {
			case !seen:
				since[d] = now
			case now.Sub(began) > soakPatience:
				since[d] = now.Add(24 * time.Hour * 365) // it is reported once
				s.violated("for %v: %s", soakPatience, d)
			}
		}
	})
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
					seen[r.Spec.PodName] += a.Address + " " + string(r.Status.State)
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
