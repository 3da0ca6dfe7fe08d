package cniplugin

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// CheckConfiguration returns the error with which every ADD of a configuration fails, nil if there
// is none. conf is what the plugin gets on standard input, without what the container runtime adds.
// It reads the configuration with the code of ADD, and before that makes the checks of libcni and
// skel.
func CheckConfiguration(conf []byte) error {
	c, err := loadConfig(conf)
	if err != nil {
		return err
	}
	if e := utils.ValidateNetworkName(c.Name); e != nil {
		return fmt.Errorf("%w: name %q: %w", errConfig, c.Name, e)
	}
	var reconciler version.Reconciler
	if e := reconciler.Check(cmp.Or(c.CNIVersion, "0.1.0"), version.All); e != nil {
		return invalid("cniVersion", "%w", e)
	}
	if sets, err := c.sets(); err == nil && len(sets) == 0 && c.entry().Capabilities["ipRanges"] {
		// A range stands for those that the container runtime adds.
		c.RuntimeConfig.IPRanges = [][]ipamRange{{{Subnet: json.RawMessage(`"192.0.2.0/24"`)}}}
	}
	if _, err := c.addRequest(&skel.CmdArgs{ContainerID: "c", IfName: "eth0"}); err != nil {
		return err
	}
	_, err = c.newResult()
	return err
}
