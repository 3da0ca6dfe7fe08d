package script_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/cli"
)

// healthy fails unless leasectl doctor finds nothing.
func healthy(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		args = []string{"--runtime-conf=config.toml"}
	}
	if err := ts.Exec("leasectl", append([]string{"doctor"}, args...)...); err != nil {
		ts.Fatalf("leasectl doctor: %v", err)
	}
}

// examine returns the findings of leasectl doctor for the reason in args, whose other elements are
// flags of doctor. Each finding has either a repair or a decision.
func examine(ts *testscript.TestScript, args []string) (found []cli.Finding) {
	reason, flags := args[0], args[1:]
	if len(flags) == 0 {
		flags = []string{"--runtime-conf=config.toml"}
	}
	_ = ts.Exec("leasectl", append([]string{"doctor", "-o", "json"}, flags...)...) // 1: there are findings
	var report cli.Report
	out := ts.ReadFile("stdout")
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		ts.Fatalf("leasectl doctor printed %q: %v", out, err)
	}
	for _, f := range report.Findings {
		if (len(f.Repair) > 0) == (f.Decide != "") {
			ts.Fatalf("%s has not either a repair or a decision: %+v", f.Reason, f)
		}
		if f.Reason == reason {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		ts.Fatalf("doctor does not find %s: %s", reason, out)
	}
	return found
}

// repair runs the commands that leasectl doctor prints for the findings of a reason.
func repair(ts *testscript.TestScript, neg bool, args []string) {
	var lines []string
	text := ""
	for _, f := range examine(ts, args) {
		if len(f.Repair) == 0 {
			ts.Fatalf("doctor has no repair for %s: %s", f.Reason, f.Decide)
		}
		text += fmt.Sprintf("%s %s\n%s\n", f.Subject, f.What, f.Why)
		lines = append(lines, f.Repair...)
	}
	script := "set -ex\n" + strings.Join(lines, "\n")
	err := ts.Exec("sh", "-c", script)
	fmt.Fprint(ts.Stdout(), text, script, "\n", ts.ReadFile("stdout"))
	fmt.Fprint(ts.Stderr(), ts.ReadFile("stderr"))
	if (err != nil) != neg {
		ts.Fatalf("repairing %s: %v", args[0], err)
	}
}

// decide fails unless leasectl doctor prints for the findings of a reason what there is to decide,
// and no command as a repair.
func decide(ts *testscript.TestScript, neg bool, args []string) {
	for _, f := range examine(ts, args) {
		if f.Decide == "" {
			ts.Fatalf("doctor has a repair for %s: %q", f.Reason, f.Repair)
		}
		fmt.Fprintf(ts.Stdout(), "%s %s\n%s\ndecide: %s\n", f.Subject, f.What, f.Why, f.Decide)
	}
}

// change changes the store's file.
func change(ts *testscript.TestScript, fn func(*bolt.Tx) error) {
	db, err := bolt.Open(filepath.Join(stateOf(ts).node.StateDir(), "leases.db"), 0o600, nil)
	ts.Check(err)
	ts.Check(db.Update(fn))
	ts.Check(db.Close())
}

func damage(ts *testscript.TestScript, neg bool, args []string) {
	change(ts, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("holders"))
		k, _ := b.Cursor().First()
		return b.Delete(k)
	})
}

func format(ts *testscript.TestScript, neg bool, args []string) {
	change(ts, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{args[0][0] - '0'})
	})
}
