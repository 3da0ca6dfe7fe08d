// Linked is linked with the packages of the plugin, and does nothing. It shows what they cost
// before main.
package main

import (
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/cniplugin"
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

func main() {
	if len(os.Args) < 2 { // the linker cannot know that there are none
		return
	}
	host, err := env.Read(os.Getenv)
	if err != nil {
		panic(err)
	}
	node := &transact.Node{Store: store.New(host.Dirs), Host: host.Host, Clock: host.Clock}
	plugin := cniplugin.Plugin{Service: &ipam.Service{Node: node}, Links: host.Host}
	skel.PluginMainFuncs(plugin.Funcs(), version.All, "")
}
