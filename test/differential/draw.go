package differential

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// draw makes calls. Everything it makes depends on the seed alone.
type draw struct {
	*rand.Rand
	tame bool // make only what real runtimes and configurations have

	caller  int       // which runtime calls
	subnets *[]string // of the configurations
}

// Draw returns a sequence of calls: mostly those of a runtime that starts and stops containers with
// one configuration, and some that are not.
func Draw(seed []byte) []Call {
	d := draw{Rand: rand.New(rand.NewChaCha8(sha256.Sum256(seed))), subnets: new([]string)}
	d.tame, d.caller = d.once(2), d.Int()
	base := d.conf()
	calls := make([]Call, 1+d.IntN(8))
	for i := range calls {
		calls[i] = d.call(base, calls[:i])
	}
	return calls
}

func pick[T any](d draw, from ...T) T { return from[d.IntN(len(from))] }

// once reports true in one of n cases.
func (d draw) once(n int) bool { return d.IntN(n) == 0 }

// rarely reports true in one of n cases, unless d is tame.
func (d draw) rarely(n int) bool { return d.once(n) && !d.tame }

// mostly draws a good value, and rarely a bad one.
func (d draw) mostly(good, bad []string) string {
	if d.rarely(12) {
		return pick(d, bad...)
	}
	return pick(d, good...)
}

var longID = strings.Repeat("a", 141)

func (d draw) call(base object, past []Call) Call {
	var c Call
	c.ID = d.mostly([]string{"c1", "c1", "c2", "c3", longID}, []string{strings.Repeat("b", 4096),
		strings.Repeat("b", 4097), "", "../x", "c.1_-", "-c1", "é"})
	c.IfName = d.mostly([]string{"eth0", "eth0", "eth0", "net1"}, []string{"", "a@b", "é", "eth0:1",
		"abcdefghijklmno", "abcdefghijklmnop", "..", "a/b", "a\x01"})
	c.Verb = d.verb(c, past)
	c.Netns = d.netns(c.ID)
	c.Args = d.args(c.ID)
	if d.rarely(10) {
		c.Override = pick(d, "1", "TRUE", "true", "0", "no")
	}
	c.NoPath = d.rarely(40)
	conf := base
	if d.rarely(4) {
		conf = d.changed(base)
	}
	conf = maps.Clone(conf)
	if d.once(4) {
		d.runtime(conf)
	}
	d.complete(&c, conf, past)
	text, err := json.Marshal(conf)
	if err != nil {
		panic(err)
	}
	c.Stdin = string(text)
	if d.rarely(15) {
		c.Stdin = d.garbled(c.Stdin)
	}
	return c
}

func (d draw) netns(id string) string {
	return d.mostly([]string{netnsOf(id)}, []string{"", "/run/netns/none", "/proc/self/ns/net", "/etc/passwd",
		"/etc/passwd/x",
		namespaces[0], namespaces[1], "netns", "/" + strings.Repeat("n", 5000)})
}

// verb returns the verb of a call: mostly a container is started, checked and stopped.
func (d draw) verb(c Call, past []Call) string {
	runs := false
	for _, p := range past {
		if p.ID == c.ID && p.IfName == c.IfName && (p.Verb == "ADD" || p.Verb == "DEL") {
			runs = p.Verb == "ADD"
		}
	}
	switch {
	case d.rarely(30):
		return pick(d, "VERSION", "", "add", "UPDATE")
	case d.once(15):
		return pick(d, "STATUS", "GC")
	case runs != d.once(10):
		return pick(d, "DEL", "DEL", "CHECK")
	}
	return "ADD"
}

// complete adds what the verb needs to the configuration.
func (d draw) complete(c *Call, conf object, past []Call) {
	switch c.Verb {
	case "GC":
		if !d.once(3) {
			conf["cniVersion"] = "1.1.0"
		}
		list := []any{}
		for _, id := range []string{"c1", "c2"} {
			if d.once(2) {
				list = append(list, object{"containerID": id, "ifname": "eth0"})
			}
		}
		if !d.once(4) {
			conf["cni.dev/valid-attachments"] = list
		}
		if d.rarely(4) {
			conf["cni.dev/valid-attachments"] = pick[any](d, nil, []any{}, []any{object{}}, "x")
		}
	case "STATUS":
		if !d.once(3) {
			conf["cniVersion"] = "1.1.0"
		}
	case "CHECK":
		for i, p := range past { // the result of the ADD
			if p.Verb == "ADD" && p.ID == c.ID && p.IfName == c.IfName {
				c.Prev = i + 1
			}
		}
		if d.rarely(3) {
			c.Prev = 0
			conf["prevResult"] = pick[any](d, nil, 5, "x", object{}, object{"cniVersion": "9.9.9"},
				object{"cniVersion": conf["cniVersion"], "ips": []any{nil}},
				object{"cniVersion": conf["cniVersion"], "ips": []any{object{"version": "4",
					"address": pick(d, "10.0.0.2/24", "10.0.0.3/24", "192.168.0.7/24", "10.0.0.2")}}})
		}
	}
}

type object = map[string]any

// conf returns a configuration. Most are valid.
func (d draw) conf() object {
	ipam := object{"type": "host-local"}
	if d.once(3) {
		ipam = d.subnet()
		ipam["type"] = "host-local"
	} else {
		ipam["ranges"] = d.sets()
	}
	if d.rarely(12) {
		maps.Copy(ipam, d.subnet())
	}
	if d.once(3) {
		ipam["dataDir"] = d.dataDir()
	}
	if d.once(4) {
		ipam["routes"] = d.routes()
	}
	if d.once(6) {
		ipam["resolvConf"] = d.mostly([]string{resolvConf, "", "/dev/null"},
			[]string{"/none", "/etc", longLine, largeFile, "resolv.conf", "/dev/zero"})
	}
	if d.once(8) {
		maps.Copy(ipam, pick(d, object{"onBusy": "refuse"}, object{"coolDown": "1m"}, object{"maxWindow": "1h"},
			object{"onExhaustion": "fail"}))
	}
	if d.rarely(12) {
		maps.Copy(ipam, pick(d, object{"onBusy": "x"}, object{"coolDown": 5}, object{"maxHeldShare": 2}))
	}
	return object{"name": d.network(), "cniVersion": d.version(), "type": pick(d, "bridge", "ptp", "macvlan"),
		"ipam": ipam}
}

func (d draw) version() string {
	return d.mostly(
		[]string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "0.4.0", "1.0.0", "1.0.0", "1.1.0", "1.1.0"},
		[]string{"", "9.9.9", "1.0", "x"})
}

func (d draw) network() string {
	return d.mostly([]string{"net", "net", "net", "podman", "a.b_c-d"}, []string{"", "../x", "a b",
		strings.Repeat("n", 255), strings.Repeat("n", 256)})
}

func (d draw) dataDir() string {
	return d.mostly(
		[]string{"", "/var/lib/cni/networks", dir + "/data", dir + "/data/", dir + "//data", "rel", "rel/../rel"},
		[]string{"/etc/passwd", "/proc/x", "a\x00b", tooLong})
}

func (d draw) routes() any {
	if d.rarely(4) {
		return pick[any](d, nil, "x", []any{nil}, []any{object{}}, []any{object{"gw": "10.0.0.1"}}, object{})
	}
	route := object{
		"dst": d.mostly([]string{"0.0.0.0/0", "fd00::/8", "10.0.0.7/24"}, []string{"10.0.0.7", "", "x"})}
	if d.once(2) {
		route["gw"] = d.mostly([]string{"10.0.0.1", "fd00::1"}, []string{"", "x"})
	}
	if d.rarely(4) {
		maps.Copy(route, pick(d, object{"mtu": 1400}, object{"mtu": "x"}, object{"scope": 200},
			object{"priority": 5}, object{"table": 100}, object{"advmss": 1}, object{"other": 1}))
	}
	return []any{route}
}

func (d draw) sets() []any {
	if d.once(3) { // dual stack, as of most clusters
		*d.subnets = append(*d.subnets, "10.0.0.0/24", "fd00::/64")
		return []any{[]any{object{"subnet": "10.0.0.0/24"}}, []any{object{"subnet": "fd00::/64"}}}
	}
	if d.tame {
		return []any{[]any{d.subnet()}}
	}
	sets := []any{}
	for range pick(d, 1, 1, 1, 1, 2, 2, 3, 0) {
		set := []any{}
		for range pick(d, 1, 1, 1, 1, 2, 2, 0) {
			set = append(set, d.subnet())
		}
		sets = append(sets, set)
	}
	return sets
}

func (d draw) subnet() object {
	subnet := d.mostly(
		[]string{"10.0.0.0/24", "10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/30", "10.0.3.0/29", "10.9.0.0/16", "fd00::/64",
			"fd00:1::/64", "fd00:2::/126"},
		[]string{"0.0.0.0/0", "10.0.0.7/24", "10.0.0.0/31", "10.0.0.0/33", "10.0.3.0/024", "fd00::/127", "fd00::1/64",
			"fd00::/8", "::/0", "::a00:0/120", "::ffff:10.0.0.0/120", "10.0.0.0", ""})
	*d.subnets = append(*d.subnets, subnet)
	r := object{"subnet": subnet}
	for _, key := range []string{"rangeStart", "rangeEnd", "gateway"} {
		if d.rarely(6) {
			r[key] = d.address(subnet)
		}
	}
	return r
}

// address returns an address, often one of the subnet.
func (d draw) address(subnet string) string {
	prefix, _, _ := strings.Cut(subnet, "/")
	if prefix = strings.TrimSuffix(prefix, "0"); prefix != "" && !d.rarely(4) {
		if d.rarely(2) {
			return prefix + pick(d, "0", "1", "254", "255")
		}
		return prefix + pick(d, "2", "2", "3", "5", "6", "9")
	}
	return d.mostly(
		[]string{"10.0.0.0", "10.0.0.1", "10.0.0.5", "10.0.0.9", "10.0.0.255", "10.0.1.7", "10.0.2.2",
			"::ffff:10.0.0.9",
			"fd00::1", "fd00::5", "fd00::ff", "fd00:1::7", ""},
		[]string{"10.0.0.09", "fe80::1%eth0", "10.0.0.9/24", "fd00::9/64", "10.0.0.9/33", "/24", "x"})
}

// requested returns an address that a runtime may request.
func (d draw) requested() string { return d.address(pick(d, append(*d.subnets, "10.0.0.0/24")...)) }

// args returns CNI_ARGS, mostly those of a real runtime, which is the same in all calls.
func (d draw) args(id string) string {
	const ignore = "IgnoreUnknown=1;"
	pod := "web-" + id[min(1, len(id)):min(2, len(id))]
	if d.once(3) {
		pod = "web-1"
	}
	uid := "of-" + pod
	if d.once(4) {
		uid = pick(d, "other", "")
	}
	kubelet := ignore + "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=" + uid
	address := "IP=" + d.requested()
	real := []string{kubelet, kubelet, kubelet, kubelet + ";" + address, ignore + address, address, "", ignore + "A=b",
		ignore + "K8S_POD_NAME=web", ignore + "K8S_POD_NAMESPACE=My_App;K8S_POD_NAME=My_App",
		ignore + "K8S_POD_NAMESPACE=;K8S_POD_NAME=demo", ignore + "K8S_POD_NAMESPACE=a.b;K8S_POD_NAME=web",
		ignore + "K8S_POD_NAMESPACE=a;K8S_POD_NAME=PodSandbox-for-create-test-1",
		ignore + "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("p", 254), "NOMAD_GROUP=x;" + ignore + "A=b"}
	of := d.caller
	if d.once(5) {
		of = d.Int()
	}
	return d.mostly([]string{real[of%len(real)]}, []string{"IP=x", "IP=x;IP=10.0.0.5", "IP=10.0.0.9;IP=", "A=b",
		"A=b;IgnoreUnknown=0", "IgnoreUnknown=yes", "IgnoreUnknown=", "IgnoreUnknown", "IgnoreUnknown=1;A=b=c",
		"IgnoreUnknown=1;", ";", "=", "IgnoreUnknown=1;=", "ip=10.0.0.9", "X_K8S_POD_NAME=a", " IP=10.0.0.9",
		"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", "K8S_POD_NAME=web", "CommonArgs=x", "IgnoreUnknown=1;CommonArgs=x",
		"K8S_POD_UID=../x;IgnoreUnknown=1", ignore + "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=../x"})
}

// runtime adds what runtimes pass in the configuration.
func (d draw) runtime(conf object) {
	switch d.IntN(5) {
	case 0:
		conf["runtimeConfig"] = object{"ips": []any{d.requested()}}
	case 1:
		if d.rarely(1) {
			conf["runtimeConfig"] = object{"ips": []any{d.requested(), d.requested()}}
		}
	case 2:
		conf["args"] = object{"cni": object{"ips": []any{d.requested()}}}
	case 3:
		conf["runtimeConfig"] = object{"ipRanges": d.sets()}
	case 4:
		annotations := pick[any](d, nil, object{}, object{"a": "b"},
			object{"io.kubernetes.cri/reserved-ip-duration": "10m"})
		if d.rarely(4) {
			annotations = pick[any](d, object{"io.kubernetes.cri/reserved-ip-duration": "x"}, "x")
		}
		conf["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": annotations,
			"mac": pick[any](d, nil, "02:00:00:00:00:01", 5), "portMappings": []any{}}
	}
}

// changed returns a configuration that differs from base in something.
func (d draw) changed(base object) object {
	other := d.conf()
	conf := copied(base)
	switch d.IntN(6) {
	case 0:
		return other
	case 1:
		conf["name"] = other["name"]
	case 2:
		conf["ipam"].(object)["dataDir"] = d.dataDir()
	case 3:
		conf["ipam"] = other["ipam"]
	case 4:
		conf["cniVersion"] = other["cniVersion"]
	default:
		d.breakOne(conf)
	}
	return conf
}

func copied(conf object) (out object) {
	text, err := json.Marshal(conf)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

// breakOne replaces or removes one value of the configuration.
func (d draw) breakOne(conf object) {
	var places []func(n any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case object:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				places = append(places, func(n any) { v[key] = n }, func(any) { delete(v, key) })
				walk(v[key])
			}
			places = append(places, func(n any) { v[pick(d, "name", "subnet", "args", "runtimeConfig", "ips")] = n })
		case []any:
			for i := range v {
				places = append(places, func(n any) { v[i] = n })
				walk(v[i])
			}
		}
	}
	walk(conf)
	broken := []any{nil, "", "x", 5, -1.5, true, []any{}, []any{nil}, []any{5}, object{},
		object{"subnet": "10.9.0.0/24"}, object{"cni": nil}}
	pick(d, places...)(pick(d, broken...))
}

// garbled changes the text of a configuration: keys that are there twice, or in capitals, and text
// that is not JSON.
func (d draw) garbled(s string) string {
	replace := func(old, with string) string { return strings.Replace(s, old, with, 1) }
	switch d.IntN(10) {
	case 0:
		return s[:d.IntN(len(s)+1)]
	case 1:
		return s + pick(d, "x", "{}", "\n", " ")
	case 2:
		return replace(`"ipam"`, `"IPAM"`)
	case 3:
		return replace(`"subnet"`, `"Subnet"`)
	case 4:
		return replace(`"ipam":`, `"ipam":{"type":"x"},"IPAM":`)
	case 5:
		return replace(`"ipam":`, `"ipam":`+pick(d, `{"ranges":[[{"subnet":"10.8.0.0/24"}]]}`, `{"dataDir":"rel"}`,
			`null`, `{"routes":[{"dst":"10.7.0.0/16"}]}`)+`,"ipam":`)
	case 6:
		return replace(`"subnet":`, `"subnet":"10.7.0.0/24","subnet":`)
	case 7:
		return replace(`{`, `{"ipam":null,`)
	case 8:
		return s[:len(s)-1] + pick(d, `,"ipam":null}`, `,"ipam":{}}`, `,"args":null}`, `,"runtimeConfig":{}}`,
			`,"runtimeConfig":null}`, `,"name":"other"}`, `,"Name":"other"}`)
	}
	return pick(d, "", "{", "[]", "null", "5", `"x"`, "\x00", "{}")
}
