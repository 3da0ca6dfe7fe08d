package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

// errUnchecked is returned if doctor found nothing, but could not make all checks.
var errUnchecked = errors.New("not everything could be checked")

func (a *app) doctor() *cobra.Command {
	var flags cniFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong on this node, and how to repair it",
		Long: `Check that the container runtime calls leasehold, that pods' annotations reach it,
and that the store and its directories can be used. Each finding says what was found
and what it leads to. It has a command that repairs it if running that can do no harm;
otherwise it says what there is to decide. Nothing is changed.

The directories of CNI are those that the configuration of the container runtime
names, or the flags. It has to run on the node itself, as root.

The exit status is 0 if nothing was found, 1 if something was, and 2 if nothing was
found but something could not be checked.`,
		Example: "  leasectl doctor\n  leasectl doctor -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.printReport(a.examineNode(cmd.Context(), flags.runtime()))
		},
	}
	a.outputFlag(c)
	flags.register(c)
	return c
}

// report is the result of all checks of a node or a cluster. Its JSON form is a stable interface.
type report struct {
	Findings  []finding   `json:"findings"`
	Unchecked []unchecked `json:"unchecked"`
	// Examined is what was looked at, for example "3 nodes".
	Examined []string `json:"examined"`
}

// finding is one problem. It has either Repair or Decide.
type finding struct {
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

// unchecked is a check, or a part of it, that could not be made.
type unchecked struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

// check is one entry of a list of checks, which change nothing. run may return findings and an
// error, if it could make a part of the check. What could not be read is an error and no finding.
type check struct {
	name string
	run  func(context.Context) ([]finding, error)
}

// examine makes checks and returns the report, without what was looked at.
func examine(ctx context.Context, checks []check) report {
	r := report{Findings: []finding{}, Unchecked: []unchecked{}, Examined: []string{}}
	for _, c := range checks {
		found, err := c.run(ctx)
		for i, f := range found {
			found[i].Repair = append([]string{}, f.Repair...) // in JSON a list, also if it is empty
		}
		r.Findings = append(r.Findings, found...)
		if err != nil {
			r.Unchecked = append(r.Unchecked, unchecked{c.name, err.Error()})
		}
	}
	return r
}

// cniFlags are the flags with which a command finds the CNI configurations and plugins of the
// runtime.
type cniFlags struct {
	confDir, runtimeConf string
	binDirs              []string
}

func (c *cniFlags) register(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&c.confDir, "cni-conf-dir", "",
		"the runtime's `directory` of CNI configurations (default what the runtime's configuration names)")
	f.StringSliceVar(&c.binDirs, "cni-bin-dir", nil,
		"the runtime's `directories` of CNI plugins (default what the runtime's configuration names)")
	f.StringVar(&c.runtimeConf, "runtime-conf", cniconf.RuntimeFiles,
		"`files` with the configuration of the container runtime")
}

// runtime returns what the flags, or else the configuration files of the container runtime, say
// about CNI.
func (c *cniFlags) runtime() cniconf.Runtime {
	r := cniconf.ReadRuntime(c.runtimeConf)
	if len(c.binDirs) > 0 {
		r.BinDirs = c.binDirs
	}
	r.ConfDir = cmp.Or(c.confDir, r.ConfDir)
	return r
}

// printReport prints a report, and returns an error unless nothing was found.
func (a *app) printReport(r report) error {
	if a.output == "json" {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		for _, f := range r.Findings {
			a.step("%s (%s)\n  found:   %s\n  effect:  %s", f.Reason, f.Subject, f.What, f.Why)
			if len(f.Repair) > 0 {
				a.step("  repair:  %s", strings.Join(f.Repair, "\n           "))
			}
			if f.Decide != "" {
				a.step("  decide:  %s", f.Decide)
			}
		}
		for _, u := range r.Unchecked {
			a.step("not checked: %s: %s", u.Check, u.Error)
		}
		if len(r.Findings)+len(r.Unchecked) == 0 {
			a.step("nothing was found; examined: %s", strings.Join(r.Examined, ", "))
		}
	}
	switch {
	case len(r.Findings) > 0:
		return errProblems
	case len(r.Unchecked) > 0:
		return errUnchecked
	}
	return nil
}
