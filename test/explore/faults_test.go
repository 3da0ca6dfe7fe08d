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

// fault is a change of the code under test that breaks an invariant.
type fault struct {
	name  string
	model string   // has to find it
	finds string   // the beginning of the counter-example, a regular expression
	in    []change // all of them, each in a file of the module
	quick bool     // also in the short form
	depth string   // "" for that of the short form
}

type change struct{ file, from, to string }

var faults = []fault{
	{
		name: "a DEL releases every bound lease", model: "windows", finds: "I4:",
		in: []change{{"pkg/transact/end.go", `	leases, err := c.Tx.ByAttachment(who, in)`,
			`	leases, err := c.Tx.ByAttachment(who, in)
	c.Tx.All(func(l lease.Lease, _ error) bool {
		if l.State == lease.Bound && len(leases) == 0 {
			leases = append(leases, l)
		}
		return true
	})`}},
	},
	{
		name: "the boot id is ignored", model: "windows", finds: "I2:",
		in: []change{{"pkg/transact/node.go", `NewEvidence(n.Host, now.BootID, `, `NewEvidence(n.Host, "", `}},
	},
	{
		name: "unknown counts as dead", model: "namespaces", finds: "I1:", quick: true,
		in: []change{{"pkg/host/evidence.go", `case life != lease.Unknown:`, `case life == lease.Unknown:
		return lease.Dead, nil
	case life != lease.Unknown:`}},
	},
	{
		name: "a refusal keeps the range sets that were decided before", model: "two sets", finds: "I5:",
		in: []change{{"pkg/ipam/assign.go", `if refused, err = a.decide(); err != nil || refused != nil {
			return err
		}`, `if refused, err = a.decide(); err != nil {
			return err
		}`}},
	},
	{
		name: "a file is written before the commit", model: "kills", finds: "order:", quick: true,
		in: []change{{"pkg/transact/node.go",
			`		c.files.change(at) // an address without a lease was admitted before
`, `		if err := c.files.open[at.Pool].Write(next, c.Now); err != nil {
			return false, err
		}
`}},
	},
	{
		name: "a file is removed after the commit", model: "one pod", finds: "order:|I3:", depth: "5",
		in: []change{{"pkg/transact/files.go", `		if err := dir.Remove(at.Address); err != nil {
			c.files.warn("a file for host-local cannot be kept: %v", err)
		}
`, `		c.files.after = append(c.files.after, func() { _ = dir.Remove(at.Address) })
`}},
	},
	{
		name: "the file of a firm hold names its container", model: "host-local", finds: "by host-local: I", depth: "4",
		in: []change{{"pkg/hostlocal/file.go", `	if l.State == lease.Held {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == ""`, `	if l.State == lease.Held && !l.Firm {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == ""`}},
	},
	{
		name: "a repeated ADD does not write a file that is missing", model: "host-local", finds: "by host-local: I1:",
		depth: "4",
		in: []change{{"pkg/transact/node.go", `	} else {
		c.files.change(at)
	}`, `	} else if !old.Holder.Is(next.Holder) {
		c.files.change(at)
	}`}},
	},
	{
		name: "a hold of an earlier boot counts the time of this one twice", model: "windows", finds: "I2:",
		in: []change{{"pkg/lease/machine.go", `Boot: now.Boot - passed,`, `Boot: -passed,`}},
	},
	{
		name: "the window that is stored for a pod is ignored", model: "agent only", finds: "I2:", depth: "7",
		in: []change{{"pkg/ipam/assign.go", `if stored, ok := a.Tx.Window(a.key); ok {`,
			`if stored, ok := a.Tx.Window(a.key); ok && stored < 0 {`}},
	},
	{
		name: "a file of host-local's is overwritten", model: "host-local", depth: "5",
		finds: "I1:|by host-local: I1:",
		in: []change{{"pkg/transact/node.go", `	if file == saysOther {
		if judge(`, `	if file == saysOther && old.State == lease.None {
		if judge(`}},
	},
	{
		name: "a file of a container that ever had the address is removed", model: "same id", finds: "I1:", depth: "7",
		in: []change{{"pkg/transact/foreign.go", `c.Tx.EarlierBoots(c.Now.BootID, `, `c.Tx.EarlierBoots("", `}},
	},
	{
		name: "a directory without a mark proves to be complete", model: "lost files", finds: "I[12]:", depth: "6",
		in: []change{{"pkg/hostlocal/dir.go", `return d.mark == whole || d.mark == numbered`, `return true`}},
	},
	{
		name: "only those leases lose the key whose address is in use", model: "one address less",
		finds: "store.Check:", depth: "6",
		in: []change{{"pkg/ipam/assign.go", `	for _, l := range a.former {
		if l.IsRetained() {
			a.superseded = append(a.superseded, l)
		}
	}
	a.former = nil`, `	a.superseded = busy
	a.former = nil`}},
	},
	{
		name: "a hold of an earlier boot is found again and again", model: "windows", finds: "the agent failed:",
		in: []change{{"pkg/lease/machine.go", `now.BootID == "" || l.ReleasedAt.BootID == now.BootID`,
			`now.BootID == "" || l.Holder.BootID == now.BootID`}},
	},
	{
		name: "the limit of holds counts bound leases", model: "share", finds: "I2:", quick: true,
		in: []change{{"pkg/transact/end.go", `Counts(l.Pool, l.Set).Firm`, `Counts(l.Pool, l.Set).Bound`}},
	},
	{
		name: "a hold yields to a pod of its own namespace", model: "one loss", finds: "I2:",
		in: []change{{"pkg/ipam/choose.go", `&& namespace != a.req.Pod.Namespace`, ``}},
	},
	{
		name: "the hold with the latest end yields", model: "fair", finds: "I2:",
		in: []change{{"pkg/ipam/choose.go", `cmp.Compare(x.Remaining(a.Now), y.Remaining(a.Now))`,
			`cmp.Compare(y.Remaining(a.Now), x.Remaining(a.Now))`}},
	},
	{
		name: "host-local's file names the container while its DEL waits", model: "host-local", depth: "4",
		finds: "by host-local: I[12]:",
		in:    []change{{"pkg/transact/spool.go", ` || dir.Write(l, now) != nil`, ``}},
	},
	{
		name: "a spooled DEL is not replayed", model: "one sandbox", finds: "I[23]:",
		in: []change{{"pkg/transact/node.go", `c.Release(who, lease.Pool{}, r.At, "DEL")`,
			`func() (bool, error) { _ = who; return true, nil }()`}},
	},
	{
		name: "a pod takes the address of a living pod of its reservation name", model: "names", finds: "I1:",
		quick: true,
		in: []change{{"pkg/lease/machine.go", `	if e.LastHolder != Dead && !l.Holder.Netns.Same(e.Holder.Netns) {
		return ErrHolderAlive
	}
	return nil
}

// mayClaim`, `	if e.LastHolder != Dead && e.Reservation == "" {
		return ErrHolderAlive
	}
	return nil
}

// mayClaim`}},
	},
	{
		name: "an ADD ends the other leases of its reservation name", model: "names", finds: "I[24]:",
		in: []change{{"pkg/ipam/assign.go", `l.IsRetained() && !others {`, `l.IsRetained() && (!others || others) {`}},
	},
	{
		name: "a pod waits for every pod of its reservation name", model: "names",
		finds: "I2: pod .* waits for a pod that does not leave",
		in: []change{{"pkg/ipam/reserve.go", `l.State == lease.Bound && !isLeaving && l.Name != a.req.Pod.Name`,
			`l.State == lease.None && isLeaving`}},
	},
	{
		name: "a lease gets no reservation name afterwards", model: "late names", finds: "I2:", depth: "6",
		in: []change{{"pkg/lease/machine.go", `l.Owner, l.Reservation = e.Owner, e.Reservation`, `l.Owner = e.Owner`}},
	},
	{
		name: "no hold yields", model: "fair", finds: "fair:", depth: "6",
		in: []change{{"pkg/policy/config.go", `OnExhaustion: Fair,`, `OnExhaustion: Fail,`}},
	},
}

// TestPlantedFaults shows that the models find faults: each one, by a counter-example.
func TestPlantedFaults(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if !f.quick && os.Getenv("LONG") == "" {
				f.plant(t, root) // whether it still can be
				return
			}
			f.mustBeFound(t, root)
		})
	}
}

func (f fault) mustBeFound(t *testing.T, root string) {
	pattern := "^TestModels$/^" + strings.ReplaceAll(f.model, " ", "_") + "$"
	cmd := exec.Command("go", "test", "-count=1", "-timeout=60m", "-overlay", f.plant(t, root), "-run", pattern,
		"./test/explore")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LONG=", "DEPTH="+f.depth)
	out, err := cmd.CombinedOutput()
	_, text, found := strings.Cut(string(out), counterExampleBegins)
	text, _, _ = strings.Cut(text, counterExampleEnds)
	switch {
	case err == nil:
		t.Fatalf("the model %q does not find it", f.model)
	case !found:
		t.Fatalf("the search of the model %q failed: %v\n%s", f.model, err, out)
	case !regexp.MustCompile("^(" + f.finds + ")").MatchString(text):
		t.Fatalf("the counter-example should begin with %q:\n%s", f.finds, text)
	}
	t.Logf("found by the model %q: %s", f.model, text)
}

// plant writes the altered copies, and an overlay that replaces the files by them (go help build).
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
			t.Fatalf("%s has the text to replace %d times, want once: %s", c.file, n, c.from)
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
