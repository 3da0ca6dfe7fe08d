package cli

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// ChoiceFlags adds the flags that choose addresses for a pod, and returns what they will choose.
func ChoiceFlags(command *cobra.Command) *maintain.Choice {
	c := &maintain.Choice{Window: lease.Forever, IfName: "eth0"}
	f := command.Flags()
	// With an empty value, which scripts may have, --pod and --reserve-as count as not given.
	named := func(to *string, isValid func(namespace, name string) bool) func(string) error {
		return func(s string) error {
			namespace, name, _ := strings.Cut(s, "/")
			if *to = name; s == "" {
				return nil
			}
			if c.Namespace = namespace; !isValid(namespace, name) {
				return errors.New("want namespace/name")
			}
			return nil
		}
	}
	f.Func("pod", "the `pod`, as namespace/name; it need not exist", named(&c.Name, hostlocal.IsPod))
	f.Func("reserve-as",
		"a reservation `name` (annotation leasehold.dev/reserve-as) instead of a pod, as namespace/name",
		named(&c.ReserveAs, func(namespace, name string) bool {
			return lease.IsNamespace(namespace) && lease.IsReserveAs(name)
		}))
	f.Func("address", "the `address`; with two address families one of each (may be repeated)", func(s string) error {
		for text := range strings.SplitSeq(s, ",") {
			addr, err := netip.ParseAddr(text)
			if err != nil || addr.Zone() != "" {
				return errors.New("want an IP address")
			}
			c.Addresses = append(c.Addresses, addr.Unmap())
		}
		return nil
	})
	f.Func("for", "how long a pod may take to come: a `duration` such as 24h, or forever (default forever)",
		func(s string) (err error) {
			if c.Window, err = policy.ParseWindow(s); err != nil || c.Window <= 0 {
				return errors.New("want a duration such as 24h, or forever")
			}
			return nil
		})
	f.Func("interface", "the `name` of the pod's interface (default eth0)", func(s string) error {
		if c.IfName = s; !hostlocal.IsIfName(s) {
			return errors.New("want the name of an interface")
		}
		return nil
	})
	command.PreRunE = func(*cobra.Command, []string) error {
		if (c.Name == "") == (c.ReserveAs == "") {
			return Usage("name a pod with --pod, or a reservation name with --reserve-as")
		}
		return nil
	}
	_ = command.MarkFlagRequired("address") // it is a flag of the command
	return c
}
