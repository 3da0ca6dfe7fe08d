package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Report is the result of all checks. Its fields are part of the interface.
type Report struct {
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
}

// Finding is one thing that is wrong.
type Finding struct {
	// Reason is one word for the cause, as in the agent's Events.
	Reason string `json:"reason"`
	// Subject is the node, the file or the object that it is about.
	Subject string `json:"subject"`
	// What is what was found, and Why what that leads to.
	What string `json:"what"`
	Why  string `json:"why"`
	// Repair are the commands of a shell that repair it, in their order.
	Repair []string `json:"repair"`
}

// Unchecked is a check that could not be made.
type Unchecked struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

// check is one entry of a table of checks.
type check[T any] struct {
	name string
	run  func(context.Context, T) ([]Finding, error)
}

// examine makes all checks of a table.
func examine[T any](ctx context.Context, subject T, checks []check[T]) Report {
	r := Report{Findings: []Finding{}, Unchecked: []Unchecked{}}
	for _, c := range checks {
		found, err := c.run(ctx, subject)
		r.Findings = append(r.Findings, found...)
		if err != nil {
			r.Unchecked = append(r.Unchecked, Unchecked{c.name, err.Error()})
		}
	}
	return r
}

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// command returns a command line of a shell. Words that a shell would change are quoted.
func command(words ...string) string {
	for i, w := range words {
		if !harmless.MatchString(w) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// install returns the command that puts a plugin at a path in one step, because the runtime may run
// it at any moment.
func install(from, to string) string {
	return fmt.Sprintf("%s && %s", command("install", "-D", "-m", "0755", from, to+".new"),
		command("mv", to+".new", to))
}
