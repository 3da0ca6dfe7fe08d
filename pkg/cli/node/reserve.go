package node

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

func (a *app) reserve() *cobra.Command {
	var choice *maintain.Choice
	var cni cniFlags
	c := &cobra.Command{
		Use:   "reserve",
		Short: "Hold an address of this node for a pod that does not exist yet",
		Long: `Hold an address of this node for a pod, or for the next pod with a reservation name,
before it exists. The pod gets it with its first ADD on this node, and no other pod
does. From then on it is kept like any address of the pod: its window, which the pod's
annotation sets, begins when the pod is deleted. An address that no pod has taken is
free again after --for. "leasectl release" releases it.

An address that is in use, that is held for another pod, or that no pod of this node can
get, is not held, and the command says why. Whether the namespace exists is not known on
a node: if it does not, the node's agent releases the address within seconds. "kubectl
leasehold reserve" refuses such a namespace.`,
		Example: "  leasectl reserve --pod=db/db-0 --address=10.244.3.20\n" +
			"  leasectl reserve --pod=db/db-0 --address=10.244.3.20 --address=fd00::14 --for=24h\n" +
			"  leasectl reserve --reserve-as=db/registry --address=10.244.3.21",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			runtime := cni.runtime()
			var networks []operation.Scope
			for _, s := range cniconf.Check(cniconf.Load(runtime.ConfDir, runtime.Rules), runtime.BinDirs) {
				if s.State == cniconf.Active && s.Pool != (lease.Pool{}) && len(s.Sets) > 0 {
					networks = append(networks, operation.Existing(s.Pool, s.Sets))
				}
			}
			service := a.service()
			if networks, err = service.Networks(cmd.Context(), networks); err != nil {
				return err
			}
			networks = slices.DeleteFunc(networks, func(n operation.Scope) bool {
				return a.network != "" && n.Pool.Network != a.network
			})
			choice.Hold, choice.Rest = choice.Window, choice.Window
			done, err := service.Reserve(cmd.Context(), networks, *choice)
			if err != nil {
				return err
			}
			return a.print(done)
		},
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	choice = cli.ChoiceFlags(c)
	cni.register(c)
	return c
}
