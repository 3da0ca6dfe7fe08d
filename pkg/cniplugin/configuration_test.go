package cniplugin

import (
	"strings"
	"testing"
)

func TestCheckConfiguration(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"usable", `{"cniVersion":"1.0.0","name":"n","ipam":{"subnet":"10.0.0.0/24"}}`, ""},
		{"keys in any case", `{"CniVersion":"1.0.0","Name":"n","IPAM":{"Subnet":"10.0.0.0/24"}}`, ""},
		{"no version", `{"name":"n","ipam":{"subnet":"10.0.0.0/24"}}`, ""},
		{"ranges from the runtime", `{"name":"n","capabilities":{"ipRanges":true},"ipam":{"type":"leasehold"}}`, ""},
		{"no ranges", `{"name":"n","ipam":{"type":"leasehold"}}`, "no IP ranges specified"},
		{"no ranges, and another error", `{"name":"n","capabilities":{"ipRanges":true},"ipam":{"defaultWindow":"x"}}`,
			"defaultWindow"},
		{"two families of an old version", `{"cniVersion":"0.2.0","name":"n","ipam":{"ranges":[
			[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.1.0.0/24"}]]}}`, "does not support more than 1 address per family"},
		{"a range twice", `{"name":"n","ipam":{"subnet":"10.0.0.0/24","ranges":[[{"subnet":"10.0.0.0/24"}]]}}`,
			"overlap"},
		{"a name with a space", `{"name":"n ","ipam":{"subnet":"10.0.0.0/24"}}`,
			"invalid characters found in network name"},
		{"no name", `{"ipam":{"subnet":"10.0.0.0/24"}}`, "missing network name"},
		{"a version that nobody has", `{"cniVersion":"9.0.0","name":"n","ipam":{"subnet":"10.0.0.0/24"}}`,
			"cniVersion: incompatible CNI versions"},
		{"a wrong route", `{"name":"n","ipam":{"subnet":"10.0.0.0/24","routes":[{}]}}`, "ipam.routes[0]"},
		{"no JSON", `{`, "invalid JSON"},
	} {
		err := CheckConfiguration([]byte(c.conf))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
