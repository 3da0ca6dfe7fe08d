package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// errUnchecked is returned if doctor found nothing, but could not make all checks.
var errUnchecked = errors.New("not everything could be checked")

// Report is the result of all checks of a node or a cluster. Its JSON form is a stable interface.
type Report struct {
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
	// Examined is what was looked at, for example "3 nodes".
	Examined []string `json:"examined"`
	check    string   // that is being made
}

// Finding is one problem. It has either Repair or Decide.
type Finding struct {
	// Reason is one word for the cause. Where the agent writes an Event for the same cause, it is
	// the reason of the Event.
	Reason string `json:"reason"`
	// Subject is the node, the file or the object that has the problem.
	Subject string `json:"subject"`
	// What is what was found, and Why is the effect on users.
	What string `json:"what"`
	Why  string `json:"why"`
	// Repair are the shell commands that repair the problem, in their order. Running them can do no
	// harm (repair.go).
	Repair []string `json:"repair"`
	// Decide says what there is to decide, for problems whose repair could do harm, or depends on
	// what is wanted.
	Decide string `json:"decide"`
}

// Unchecked is a check, or a part of it, that could not be made.
type Unchecked struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

// NewReport returns the report of no checks.
func NewReport() *Report {
	return &Report{Findings: []Finding{}, Unchecked: []Unchecked{}, Examined: []string{}}
}

// Check makes a check, which changes nothing. It calls Find and Fail, also both if it could make a
// part of the check. What could not be read is an error and no finding.
func (r *Report) Check(ctx context.Context, name string, check func(context.Context)) {
	r.check = name
	check(ctx)
}

// Find adds a finding.
func (r *Report) Find(f Finding) {
	f.Repair = append([]string{}, f.Repair...) // in JSON a list, also if it is empty
	r.Findings = append(r.Findings, f)
}

// Fail adds why the check, or a part of it, could not be made, unless err is nil.
func (r *Report) Fail(err error) {
	switch i := slices.IndexFunc(r.Unchecked, func(u Unchecked) bool { return u.Check == r.check }); {
	case err == nil:
	case i >= 0:
		r.Unchecked[i].Error += "\n" + err.Error()
	default:
		r.Unchecked = append(r.Unchecked, Unchecked{r.check, err.Error()})
	}
}

// NotKept is the effect of a network for which leasehold is not active.
const NotKept = "no address is kept: pods with the annotation get another one when they are created again"

// PrintReport prints a report, and returns an error unless nothing was found.
func (a *App) PrintReport(r *Report) error {
	if a.Output == "json" {
		if err := a.PrintJSON(r); err != nil {
			return err
		}
	} else {
		one := func(text string) string { return strings.ReplaceAll(text, "\n", "; ") } // it may be a user's
		for _, f := range r.Findings {
			a.Step("%s (%s)\n  found:   %s\n  effect:  %s", one(f.Reason), one(f.Subject), one(f.What), one(f.Why))
			if len(f.Repair) > 0 {
				a.Step("  repair:  %s", strings.Join(f.Repair, "\n           "))
			}
			if f.Decide != "" {
				a.Step("  decide:  %s", one(f.Decide))
			}
		}
		for _, u := range r.Unchecked {
			a.Step("not checked: %s: %s", u.Check, one(u.Error))
		}
		if len(r.Findings)+len(r.Unchecked) == 0 {
			a.Step("nothing was found; examined: %s", strings.Join(r.Examined, ", "))
		}
	}
	switch {
	case len(r.Findings) > 0:
		return ErrProblems
	case len(r.Unchecked) > 0:
		return errUnchecked
	}
	return nil
}
