package explore

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fault is a mistake that is planted into the code under test.
type fault struct {
	name  string
	world string   // that has to find it
	says  string   // what the story begins with, a regular expression
	in    []change // all of them, each in a file of the module
	quick bool     // a part of the short form
	depth string   // where it takes more than the short form
}

type change struct{ file, from, to string }

var faults = []fault{
	{
		name: "a DEL releases whatever is bound", world: "windows", says: "I4:",
		in: []change{{"pkg/ipam/release.go", `reason string) error {
	leases, err := c.tx.ByHolder(who.ContainerID, who.IfName)`, `reason string) error {
	leases, err := c.tx.ByHolder(who.ContainerID, who.IfName)
	c.tx.All(func(l lease.Lease, _ error) bool {
		if l.State == lease.Bound && len(leases) == 0 {
			leases = append(leases, l)
		}
		return true
	})`}, {"pkg/ipam/release.go", `if found = len(leases) > 0; !found {`, `if found = len(leases) >= 0; err != nil {`}},
	},
	{
		name: "the boot id is ignored", world: "windows", says: "I2:",
		in: []change{{"pkg/ipam/service.go", `newEvidence(s.Host, now.BootID, `, `newEvidence(s.Host, "", `}},
	},
	{
		name: "unknown counts as dead", world: "namespaces", says: "I1:", quick: true,
		in: []change{{"pkg/ipam/evidence.go", `case life != lease.Unknown:`, `case life == lease.Unknown:
		return lease.Dead, nil
	case life != lease.Unknown:`}},
	},
	{
		name: "a refusal keeps the range sets that were decided before", world: "two sets", says: "I5:",
		in: []change{{"pkg/ipam/assign.go", `if refused, err = a.decide(); err != nil || refused != nil {
			return err
		}`, `if refused, err = a.decide(); err != nil {
			return err
		}`}},
	},
	{
		name: "a file is written before the commit", world: "kills", says: "order:", quick: true,
		in: []change{{"pkg/ipam/mirror.go",
			`c.mirrors.change(at.Pool, at.Address, old.State == lease.Bound)`,
			`if err := mirror.Write(next, c.now); err != nil {
			return err
		}`}},
	},
	{
		name: "a file is removed after the commit", world: "one pod", says: "order:|I3:", depth: "5",
		in: []change{{"pkg/ipam/mirror.go", `
		c.mirrors.remove(mirror, at.Address)
	}`, `
		c.mirrors.after = append(c.mirrors.after, func() error { c.mirrors.remove(mirror, at.Address); return nil })
	}`}},
	},
	{
		name: "an old snapshot is trusted", world: "old snapshot", says: "I4:", depth: "8",
		in: []change{{"pkg/ipam/learn.go", `known := c.tx.Adopted(p)`, `known := false`}},
	},
	{
		name: "the file of a firm hold names its container", world: "host-local", says: "by host-local: I", depth: "4",
		in: []change{{"pkg/hostlocal/file.go", `	if l.State == lease.Held {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == ""`, `	if l.State == lease.Held && !l.Firm {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == ""`}},
	},
	{
		name: "files that a killed call has left out are not written", world: "host-local", says: "by host-local: I1:",
		depth: "4",
		in:    []change{{"pkg/ipam/learn.go", `if leases != c.tx.LeaseCount(s.pool) {`, `if leases < 0 {`}},
	},
	{
		name: "a hold of an earlier boot counts the time of this one twice", world: "windows", says: "I2:",
		in: []change{{"pkg/lease/machine.go", `Boot: now.Boot - passed,`, `Boot: -passed,`}},
	},
	{
		name: "the window that is stored for a pod is ignored", world: "untold", says: "I2:", depth: "7",
		in: []change{{"pkg/ipam/assign.go", `if stored, ok := a.tx.Window(a.key); ok {`,
			`if stored, ok := a.tx.Window(a.key); ok && stored < 0 {`}},
	},
	{
		name: "within a boot an older file is not believed either", world: "shared clock", says: "I1:", depth: "7",
		in: []change{{"pkg/hostlocal/owner.go", ` && at.BootID != boot && f.`, ` && f.`}},
	},
	{
		name: "a file of a container that ever had the address is removed", world: "same id", says: "I1:", depth: "7",
		in: []change{{"pkg/hostlocal/owner.go", `f.Modified.Before(h.Last) && `, ``}},
	},
	{
		name: "a directory proves to be complete by any file", world: "lost files", says: "I[12]:", depth: "6",
		in: []change{{"pkg/hostlocal/dir.go", `len(addrs) >= d.leases`, `len(addrs) > 0`}},
	},
	{
		name: "only those leases lose the key whose address is in use", world: "one address less", says: "store.Check:",
		depth: "6",
		in: []change{{"pkg/ipam/assign.go", `	for _, l := range a.former {
		if isKept(l) {
			a.superseded = append(a.superseded, l)
		}
	}
	a.former = nil`, `	a.superseded = busy
	a.former = nil`}},
	},
	{
		name: "a hold of an earlier boot is found again and again", world: "windows", says: "the agent failed:",
		in: []change{{"pkg/lease/machine.go", `now.BootID == "" || l.ReleasedAt.BootID == now.BootID`,
			`now.BootID == "" || l.Holder.BootID == now.BootID`}},
	},
	{
		name: "the limit of holds counts bound leases", world: "share", says: "I2:", quick: true,
		in: []change{{"pkg/ipam/evidence.go", `Counts(l.Pool, l.Set).Firm`, `Counts(l.Pool, l.Set).Bound`}},
	},
}

// TestPlantedFaults proves that the worlds find what they are for: each fault, by a story.
func TestPlantedFaults(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		if !f.quick && os.Getenv("LONG") == "" {
			continue
		}
		t.Run(f.name, func(t *testing.T) { f.mustBeFound(t, root) })
	}
}

func (f fault) mustBeFound(t *testing.T, root string) {
	pattern := "^TestWorlds$/^" + strings.ReplaceAll(f.world, " ", "_") + "$"
	cmd := exec.Command("go", "test", "-count=1", "-overlay", f.plant(t, root), "-run", pattern, "./test/explore")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LONG=", "DEPTH="+f.depth)
	out, err := cmd.CombinedOutput()
	_, story, found := strings.Cut(string(out), storyBegins)
	story, _, _ = strings.Cut(story, storyEnds)
	switch {
	case err == nil:
		t.Fatalf("the world %q does not find it", f.world)
	case !found:
		t.Fatalf("the world %q could not be gone through: %v\n%s", f.world, err, out)
	case !regexp.MustCompile("^(" + f.says + ")").MatchString(story):
		t.Fatalf("the story should begin with %q:\n%s", f.says, story)
	}
	t.Logf("found by the world %q: %s", f.world, story)
}

// plant makes the altered copies, and an overlay (go help build) that puts them in their places.
func (f fault) plant(t *testing.T, root string) string {
	dir, altered, overlay := t.TempDir(), map[string]string{}, struct{ Replace map[string]string }{map[string]string{}}
	for _, c := range f.in {
		path := filepath.Join(root, c.file)
		text, planted := altered[path]
		if !planted {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if n := strings.Count(text, c.from); n != 1 {
			t.Fatalf("%s has the text %d times that the fault is planted in: %s", c.file, n, c.from)
		}
		altered[path] = strings.Replace(text, c.from, c.to, 1)
	}
	for path, text := range altered {
		overlay.Replace[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(overlay.Replace[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
