package cniconf

import (
	"errors"
	"strings"
	"testing"
)

// stockList is what kube-flannel writes.
const stockList = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

func TestWithLeasehold(t *testing.T) {
	const list, single = "10-net.conflist", "10-net.conf"
	for _, c := range []struct {
		name, file string
		text, want string // "@" stands for a name and a version; want "": an error
		err        string
	}{
		{"flannel's list", list, stockList, strings.Replace(stockList, "    {\n      \"type\": \"flannel\"",
			"    {\n      \"ipam\": {\"type\": \"leasehold\"},\n      \"type\": \"flannel\"", 1), ""},
		{"flannel with an ipam section", list, `{@,"plugins":[{"type":"flannel","ipam":{ "routes":[] }}]}`,
			`{@,"plugins":[{"type":"flannel","ipam":{ "type": "leasehold", "routes":[] }}]}`, ""},
		{"keys in any case", list, `{@,"plugins":[{"Type":"bridge","IPAM":{"Type":"host-local"}}]}`,
			`{@,"plugins":[{"Type":"bridge","IPAM":{"Type":"leasehold"}}]}`, ""},
		{"a key that folds to another letter", single, `{@,"type":"ptp","ipam":{"type":"host-local","ſubnet":1}}`,
			`{@,"type":"ptp","ipam":{"type":"leasehold","ſubnet":1}}`, ""},
		{"a key twice, of which the last counts", list, `{@,"plugins":[{"type":"ptp",` +
			`"ipam":{"type":"host-local"},"ipam":{"type":"dhcp","type":"host-local"}}]}`,
			`{@,"plugins":[{"type":"ptp",` +
				`"ipam":{"type":"host-local"},"ipam":{"type":"dhcp","type":"leasehold"}}]}`, ""},
		{"plugins twice, and a key that libcni ignores", list, `{@,"plugins":[{"type":"x"}],"Plugins":[],` +
			`"plugins":[{"type":"flannel"}]}`,
			`{@,"plugins":[{"type":"x"}],"Plugins":[],` +
				`"plugins":[{"ipam": {"type": "leasehold"},"type":"flannel"}]}`, ""},
		{"flannel's section, whose keys are exact", list, `{@,"plugins":[{"type":"flannel","Ipam":{"Type":"x"}}]}`,
			`{@,"plugins":[{"type":"flannel","Ipam":{"type": "leasehold","Type":"x"}}]}`, ""},
		{"one key in two cases", list, `{@,"plugins":[{"type":"ptp","IPAM":{"type":"host-local"},"ipam":{}}]}`, "",
			`of the keys IPAM and ipam one has to go, because plugins ignore the case of keys; write "ipam": ` +
				`{"type": "leasehold", ...} in the entry of ptp by hand`},
		{"capabilities in two cases", list, `{@,"plugins":[{"type":"flannel","Capabilities":{},"capabilities":{}}]}`,
			"", "of the keys Capabilities and capabilities one has to go"},
		{"what could not be undone", list, `{@,"plugins":[{"type":"flannel","ipam":{}}]}`, "",
			`could not undo the change; write "ipam": {"type": "leasehold", ...} in the entry of flannel by hand`},
		{"no object", list, `{@,"plugins":[{"type":"flannel","ipam":null}]}`, "",
			`/plugins/0/ipam is not an object; write`},
		{"bridge, and another network's address", single,
			`{@,"x":"host-local","type":"bridge","ipam" : {"type" :"host-local", "subnet":"10.0.0.0/8"}}`,
			`{@,"x":"host-local","type":"bridge","ipam" : {"type" :"leasehold", "subnet":"10.0.0.0/8"}}`, ""},
		{"two plugins", list,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"tuning"},` +
				`{"type":"bridge","ipam":{"type":"host-local"}}]}`,
			`{@,"plugins":[{"type":"ptp","ipam":{"type":"leasehold"}},{"type":"tuning"},` +
				`{"type":"bridge","ipam":{"type":"leasehold"}}]}`, ""},
		{"escaped letters", single,
			`{@,"x":"\u00e4","type":"bridge","\u0069pam":{"t\u0079pe":"host-local","x":[1,{"a":null}]}}`,
			`{@,"x":"\u00e4","type":"bridge","\u0069pam":{"t\u0079pe":"leasehold","x":[1,{"a":null}]}}`, ""},
		{"a delegate of Multus in another case", single,
			`{@,"Type":"multus","Delegates":[{"Name":"m","plugins":[{"Type":"ptp","Ipam":{"type":"host-local"}}]}]}`,
			`{@,"Type":"multus","Delegates":[{"Name":"m","plugins":[{"Type":"ptp","Ipam":{"type":"leasehold"}}]}]}`,
			""},
		{"a delegate of Multus", single,
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"host-local"}}]}`,
			`{@,"type":"multus","delegates":[{"name":"m","type":"bridge","ipam":{"type":"leasehold"}}]}`, ""},
		{"a plugin that resolves values for host-local", list, `{@,"plugins":[{"type":"calico","ipam":{"type":` +
			`"host-local","subnet":"usePodCidr"}}]}`, "", "calico may call no other"},
		{"another IPAM plugin", single, `{@,"type":"calico","ipam":{"type":"calico-ipam"}}`, "", "calico-ipam"},
		{"leasehold", single, `{@,"type":"bridge","ipam":{"type":"leasehold"}}`, "", "leasehold"},
		{"no JSON", list, `{`, "", "unexpected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := strings.NewReplacer("@", `"name":"n","cniVersion":"1.0.0"`)
			c.text, c.want = head.Replace(c.text), head.Replace(c.want)
			got, err := WithLeasehold(c.file, []byte(c.text))
			if (err == nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if err == nil && string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if err == nil {
				if _, err := WithLeasehold(c.file, got); !errors.Is(err, ErrNothingToChange) {
					t.Errorf("a second time: %v", err)
				}
			}
		})
	}
}
