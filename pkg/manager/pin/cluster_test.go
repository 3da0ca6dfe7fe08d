package pin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// object returns the pod or the reservation of a line of testdata/cluster.txt.
func object(t *testing.T, line string) any {
	t.Helper()
	var r *reservation
	var p *podView
	words := strings.Split(line, " ")
	switch words[0] {
	case "left":
		r, words = left(words[1], words[2], duration(t, words[3])), words[4:]
	case "kept":
		r, words = kept(words[1], words[2]), words[3:]
	case "own":
		minutes, err := strconv.Atoi(words[4])
		must.Succeed(t, err)
		r, words = reservationOfPod(words[1], words[2], words[3], minutes), words[5:]
	case "lives":
		p, words = lives(words[1], words[2]), words[3:]
	case "pinned":
		p, words = pinnedTo(words[1], words[2]), words[3:]
	case "runs":
		p, words = runs(types.UID(words[1])), words[2:]
	case "waits":
		p, words = waits(types.UID(words[1])), words[2:]
	default:
		t.Fatalf("unknown line %q", line)
	}
	if r != nil {
		cases.Words(t, words, map[string]func(string){
			"for": func(v string) { r.For = v }, "namespace": func(v string) { r.Namespace = v },
			"version": func(v string) { r.ResourceVersion = v }, "releasing": func(string) { r.Releasing = true },
			"no-end": func(string) { r.Until = time.Time{} }, "bound": func(string) { r.Bound = true },
			"addresses": func(v string) { r.Addresses, r.Primary = v, strings.Split(v, ",")[0] },
			"left":      func(v string) { r.Until = noon.Add(duration(t, v)) },
			"written":   func(v string) { r.Written = noon.Add(-duration(t, v)) },
			"window":    func(v string) { r.Window = lease.Window(duration(t, v)) },
		})
		return r
	}
	cases.Words(t, words, map[string]func(string){
		"for": func(v string) { p.For = v }, "namespace": func(v string) { p.Namespace = v },
		"node": func(v string) { p.Node = v }, "sent": func(v string) { p.Sent = v },
		"pinned": func(v string) { p.Pinned = v }, "addresses": func(v string) { p.Addresses = v },
		"deleting": func(string) { deleting(p) }, "failed": func(string) { p.Failed = true },
		"evicted": func(string) { p.Evicted = true }, "rejected": func(string) { p.Rejected = true },
		"created":    func(string) { p.CreationTimestamp = metav1.NewTime(noon) },
		"window":     func(v string) { p.Window = lease.Window(duration(t, v)) },
		"lived":      func(v string) { p.BoundAt = noon.Add(-duration(t, v)) },
		"no-address": func(string) { p.Started, p.Addresses = false, "" },
		"no-sandbox": func(string) {
			p.Started, p.Addresses, p.BoundAt = false, "", noon.Add(-time.Hour)
		},
		"unschedulable": func(string) { p.Unschedulable = true },
		"untried":       func(string) { p.Unschedulable = false },
		"cordoned":      func(string) { p.Reason = "NodeCordoned: node1 is cordoned" },
		"preferred":     func(string) { p.Reason = "Reserved: prefer node1, which has 10.0.0.7" },
	})
	return p
}

// duration returns a time of testdata/cluster.txt, such as "1m+ClockLag" or "2*publishLag".
func duration(t *testing.T, text string) (sum time.Duration) {
	t.Helper()
	named := map[string]time.Duration{"ClockLag": control.ClockLag, "ClockLag-1": control.ClockLag - 1,
		"publishLag": publishLag, "sentFor": sentFor, "maxMemory": maxMemory, "startGrace": startGrace,
		"forever": time.Duration(lease.Forever)}
	for term := range strings.SplitSeq(text, "+") {
		name, isDouble := strings.CutPrefix(term, "2*")
		d, found := named[name]
		if !found {
			var err error
			d, err = time.ParseDuration(name)
			must.Succeed(t, err)
		}
		if sum += d; isDouble {
			sum += d
		}
	}
	return sum
}

func TestCluster(t *testing.T) {
	key := control.NameKey("db", "registry")
	for _, tt := range cases.Read(t, "testdata/cluster.txt")[1:] {
		t.Run(tt.Name, func(t *testing.T) {
			clock := noon
			c := clusterOf(t, nil, &clock)
			about := (*podView)(nil)
			for _, line := range tt.Lines {
				verb, rest, _ := strings.Cut(line, " ")
				switch verb {
				case "->":
					what, want, _ := strings.Cut(rest, " ")
					check.Equal(t, c.concludes(what, about), want, what)
				case "ended", "deleted":
					c.remove(t, object(t, rest))
				case "about":
					about = object(t, rest).(*podView)
				case "follower":
					c.isLeader = func() bool { return false }
				case "admitted":
					c.sent[0].add(rest, clock)
				case "after":
					clock = clock.Add(duration(t, rest))
					c.expire()
				default:
					c.add(t, object(t, line))
				}
				c.mayReplace(key, "") // counts all, so that changes must be noticed
			}
		})
	}
}

// concludes returns what a line "->" of testdata/cluster.txt wants.
func (c *cluster) concludes(what string, about *podView) string {
	var out []string
	targets := slices.Collect(c.targets(control.NameKey("db", "registry"), c.sent[0].pods))
	switch what {
	case "targets", "home":
		if what == "home" {
			targets = []pinTarget{c.target("db/db-0")}
		}
		for _, target := range targets {
			out = append(out, target.Node)
			for word, is := range map[string]bool{"evicted": target.Last.Evicted, "struck": target.HasStrike,
				"failed": target.Last.Failures >= maxFailures} {
				if is {
					out = append(out, word)
				}
			}
		}
	case "nodes":
		for _, n := range c.nodesOf(control.NameKey("db", "registry")) {
			out = append(out, n.node)
		}
	case "expects":
		for _, target := range targets {
			out = append(out, target.Addresses+": "+target.Expected)
		}
	case "ending":
		return fmt.Sprint(c.isEnding(about))
	case "kept-elsewhere":
		return c.keptElsewhere(about)
	case "strikes":
		return fmt.Sprint(c.strikesUntil("db/db-0", c.now().Add(1)))
	case "last":
		last := c.lastEnded("db/db-0")
		return fmt.Sprintf("%s on %s %s evicted=%t failures=%d until=%s", last.PodUID, last.Node, last.Addresses,
			last.Evicted, last.Failures, last.Until.Sub(noon))
	case "remembers":
		out = []string{"nothing"}
		c.instances.Range(func(key, value any) bool {
			out[0] = fmt.Sprint(key, value)
			return true
		})
	}
	return strings.Join(out, " ")
}
