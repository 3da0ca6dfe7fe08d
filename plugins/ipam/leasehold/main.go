// The runtime need not follow the limit of processors: the program ends after some milliseconds.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// leasehold is a CNI IPAM plugin with the configuration and behaviour of host-local that keeps the
// addresses of pods while they are recreated. It works the same if it is installed as host-local.
// As a chained plugin, after the one that creates the interface, it also keeps the hardware
// address.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cni "github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/cniplugin"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

var version = "(devel)" // set at link time

func main() {
	growStack(-1)
	signal.Ignore(syscall.SIGPIPE) // a result that cannot be written must release its address
	host, clock, err := host.FromEnv(os.Getenv)
	if err != nil {
		_ = types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "unset the variable").Print()
		os.Exit(1)
	}
	leases := store.New(store.DirsFromEnv(os.Getenv))
	leases.BootID = host.BootID
	node := &operation.Node{Store: leases, Host: host, Plugin: true, Clock: clock}
	plugin := cniplugin.Plugin{
		Service: &ipam.Service{Node: node},
		LogCall: leases.Run().LogCall,
		Links:   host,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,

		NetnsOverride: os.Getenv(cniplugin.NetnsOverride),
	}
	node.Warn, leases.Timed = plugin.Warn, plugin.Timed
	os.Setenv(cniplugin.NetnsOverride, "TRUE") // the plugin makes that check itself
	skel.PluginMainFuncs(plugin.Funcs(), cni.All, "CNI plugin leasehold "+version)
}

// growStack grows the stack to what a call needs. Otherwise it grows in steps, each with the frames
// of the call on it, which takes a twentieth of a call. It is called with -1.
//
//go:noinline
func growStack(i int) byte {
	if i < 0 {
		return 0
	}
	var frame [48 << 10]byte
	return frame[i]
}
