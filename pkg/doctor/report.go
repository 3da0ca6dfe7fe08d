package doctor

import "context"

// Report is the result of all checks of a node or a cluster. Its JSON form is a stable interface.
type Report struct {
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
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

// check is one entry of a table of checks. T is *Node or *Cluster. run may return findings and an
// error, if it could make a part of the check.
type check[T any] struct {
	name string
	run  func(context.Context, T) ([]Finding, error)
}

// examine makes all checks of a table and returns the report.
func examine[T any](ctx context.Context, subject T, checks []check[T]) Report {
	r := Report{Findings: []Finding{}, Unchecked: []Unchecked{}}
	for _, c := range checks {
		found, err := c.run(ctx, subject)
		for i, f := range found {
			found[i].Repair = append([]string{}, f.Repair...) // in JSON a list, also if it is empty
		}
		r.Findings = append(r.Findings, found...)
		if err != nil {
			r.Unchecked = append(r.Unchecked, Unchecked{c.name, err.Error()})
		}
	}
	return r
}
