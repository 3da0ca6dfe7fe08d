package cli

import (
	"cmp"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/doctor"
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
			dir, rules, binaries := flags.configuration()
			n := doctor.Node{Store: a.store(), Host: a.Host, Clock: a.Clock, ConfDir: dir, Rules: rules,
				Binaries: binaries}
			return a.report(n.Examine(cmd.Context()))
		},
	}
	a.outputFlag(c)
	flags.register(c)
	return c
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

// configuration returns the directory of the CNI configurations, how the runtime loads them, and
// its plugins, as the flags or else the configuration files of the runtime say.
func (c *cniFlags) configuration() (dir string, rules cniconf.Rules, binaries cniconf.Binaries) {
	r := cniconf.ReadRuntime(c.runtimeConf)
	if len(c.binDirs) > 0 {
		r.BinDirs = c.binDirs
	}
	return cmp.Or(c.confDir, r.ConfDir), r.Rules, r.BinDirs
}

// report prints a report.
func (a *app) report(r doctor.Report) error {
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
			a.step("nothing was found")
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
