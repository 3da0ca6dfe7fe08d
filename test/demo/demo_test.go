// Package demo_test shows what leasehold does, with real CNI plugins in its own network namespaces,
// and checks every statement that it prints. `make demo` runs it.
package demo_test

import (
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/test/lab"
)

var update = flag.Bool("update", false, "write the picture of README.md")

func TestMain(m *testing.M) { lab.Main(m) }

// varying is what differs between two runs of the demo: container ids and times.
var varying = regexp.MustCompile(`\b([0-9a-f]{8}|[0-9a-f]{13})\b|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// TestDemo runs the demo, and checks that the picture in README.md is what it prints.
func TestDemo(t *testing.T) {
	began := time.Now()
	s := &presenter{T: t, node: lab.NewNode(t)}
	run(s)
	file := filepath.Join(lab.Root(), "docs/images/demo.svg")
	now := picture(s.lines[1:]) // the first line is empty
	if *update {
		s.check(os.WriteFile(file, []byte(now), 0o644))
	}
	fmt.Printf("Done, in %.0f s. Everything that was created is removed.\n", time.Since(began).Seconds())
	recorded, err := os.ReadFile(file)
	s.check(err)
	want, got := varying.ReplaceAllString(string(recorded), "..."), varying.ReplaceAllString(now, "...")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s is not what the demo prints; run make demo FLAGS=-update (-file +demo)\n%s", file, diff)
	}
}

// run runs the steps.
func run(s *presenter) {
	node := s.node

	// Only eight addresses, so that the pool is exhausted quickly.
	pool := lab.With(node.IPAM(),
		lab.Conf{"ranges": [][]lab.Conf{{{"subnet": "10.22.0.0/24", "rangeStart": "10.22.0.10",
			"rangeEnd": "10.22.0.17"}}}})
	net := node.Network("podnet", "1.0.0", node.Bridge(pool), lab.Conf{"type": "portmap",
		"capabilities": lab.Conf{"portMappings": true}})

	node.Agent()

	s.step("Two pods start, on the bridge plugin. db-0 is annotated with a window of 10 minutes; web-1 is not.")
	window := "10m"
	db := node.Sandbox(lab.NewPod("default", "db-0", window))
	hostPort := portMapping(s, db)
	original := s.add(db, net)
	web := node.Sandbox(lab.NewPod("default", "web-1", ""))
	s.add(web, net)
	s.show()
	db.Echo()
	s.answers(web, original, hostPort)

	s.step("db-0 is deleted. Its address is held.")
	old := *db
	s.check(db.Stop(net))
	s.show()
	s.verify(strings.Contains(s.leasectl("list"), "Held"), "the list contains a hold")

	s.step("Other pods start and stop. None of them gets %s.", original)
	for i := range 10 {
		other := node.Sandbox(lab.NewPod("default", fmt.Sprintf("other-%d", i), ""))
		s.verify(s.add(other, net) != original, "other-%d has another address", i)
		s.check(other.Stop(net))
	}

	s.step("The pool is used up. Still no other pod gets %s.", original)
	for i := range 6 {
		pod := node.Sandbox(lab.NewPod("default", fmt.Sprintf("fill-%d", i), ""))
		s.verify(s.add(pod, net) != original, "fill-%d has another address", i)
	}
	_, err := node.Sandbox(lab.NewPod("default", "fill-6", "")).Add(net)
	s.verify(err != nil && strings.Contains(err.Error(), "no IP addresses available"), "the next ADD fails: %v", err)
	s.say("  ADD default/fill-6 fails:\n    %v", err)
	s.show()

	s.step("db-0 returns: the same name, another UID, another container, another network namespace.")
	db = node.Sandbox(lab.NewPod("default", "db-0", window))
	hostPort = portMapping(s, db)
	s.verify(s.add(db, net) == original, "db-0 has %s again", original)
	s.show()
	db.Echo()
	s.say("  web-1 and the node have a neighbour entry with the MAC of the old db-0. The agent announces the new one.")
	began := time.Now()
	s.answers(web, original, hostPort)
	s.verify(time.Since(began) < 5*time.Second, "it replies at once, not after the neighbour entries have expired (%s)",
		time.Since(began))

	s.step("The runtime repeats the DEL of the old container. It changes nothing.")
	before := s.leasectl("list")
	s.check(old.Del(net))
	s.verify(s.leasectl("list") == before, "the list is unchanged")
	s.check(db.Check(net))
	s.say("  DEL default/db-0 (%.8s): ok; CHECK default/db-0 (%.8s): ok; the list is unchanged", old.ID, db.ID)
}

// portMapping publishes the pod's echo server on the node, if iptables is installed for the portmap
// plugin.
func portMapping(s *presenter, sandbox *lab.Sandbox) (hostPort string) {
	if _, err := exec.LookPath("iptables"); err != nil {
		s.say("  (iptables is not installed: no port is published)")
		return ""
	}
	sandbox.Capabilities["portMappings"] = []map[string]any{{"hostPort": 8080, "containerPort": 7, "protocol": "tcp"}}
	return "10.22.0.1:8080"
}

// A presenter prints and checks the steps of the demo.
type presenter struct {
	*testing.T
	node  *lab.Node
	steps int
	lines []string // of the picture
}

// The picture has no lines of the pods that fill the pool.
const (
	recordedColumns = 118
	lineHeight      = 17
)

var filler = regexp.MustCompile(`default/(other-|fill-[0-5])`)

// say prints lines, and keeps those of the picture.
func (s *presenter) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Println(text)
	for line := range strings.SplitSeq(text, "\n") {
		if !filler.MatchString(line) {
			s.lines = append(s.lines, line)
		}
	}
}

func (s *presenter) step(format string, args ...any) {
	s.steps++
	s.say("\n%d. "+format, append([]any{s.steps}, args...)...)
}

// verify ends the demo if a statement is false.
func (s *presenter) verify(ok bool, format string, args ...any) {
	s.Helper()
	if !ok {
		s.Fatalf("FAILED: "+format, args...)
	}
}

func (s *presenter) check(err error) {
	s.Helper()
	s.verify(err == nil, "no error (%v)", err)
}

func (s *presenter) leasectl(args ...string) string {
	out, err := s.node.Leasectl(args...)
	s.check(err)
	return out
}

func (s *presenter) add(sandbox *lab.Sandbox, net *lab.Network) string {
	addrs, err := sandbox.Add(net)
	s.check(err)
	s.say("  ADD %s/%s (%.8s) -> %s", sandbox.Pod.Namespace, sandbox.Pod.Name, sandbox.ID, strings.Join(addrs, ", "))
	return strings.Join(addrs, ", ")
}

func (s *presenter) answers(sibling *lab.Sandbox, address, hostPort string) {
	s.check(sibling.Ask(address))
	s.say("  a sibling connects to %s: it replies", address)
	if hostPort != "" {
		s.check(s.node.Ask(hostPort))
		s.say("  the node connects to the published port %s: it replies", hostPort)
	}
}

// show prints the output of leasectl list.
func (s *presenter) show() {
	s.say("  $ leasectl list")
	for line := range strings.Lines(s.leasectl("list")) {
		s.say("  %s", strings.TrimSuffix(line, "\n"))
	}
}

// picture returns lines as an SVG in the colours of a terminal. Longer ones are cut.
func picture(lines []string) string {
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"`, recordedColumns*73/10+28,
		len(lines)*lineHeight+24)
	out.WriteString(` font-family="monospace" font-size="12">
<!-- Written by make demo FLAGS=-update. -->
<rect width="100%" height="100%" rx="6" fill="#0d1117"/>
`)
	for i, line := range lines {
		colour := "#c9d1d9"
		switch {
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "  NETWORK"), strings.HasPrefix(line, "  podnet"):
			colour = "#8b949e"
		case !strings.HasPrefix(line, " "):
			colour = "#58a6ff"
		}
		if r := []rune(line); len(r) > recordedColumns {
			line = string(r[:recordedColumns-1]) + "…"
		}
		fmt.Fprintf(&out, `<text x="14" y="%d" fill="%s" xml:space="preserve">`, i*lineHeight+25, colour)
		xml.EscapeText(&out, []byte(line)) // a strings.Builder returns no error
		out.WriteString("</text>\n")
	}
	return out.String() + "</svg>\n"
}
