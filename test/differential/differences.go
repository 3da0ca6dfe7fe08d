package differential

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Difference is a kind of call to which leasehold replies in another way than host-local.
type Difference struct {
	Call, HostLocal, Leasehold, Reason string // columns of the table in docs/reference.md

	// explains reports whether a difference of e is of this kind. past are the exchanges before it,
	// in none of which the programs differed. It is nil if instead is set.
	explains func(past []Exchange, e Exchange) bool
	// instead is for a call whose replies are the same, and whose effects differ. It returns the
	// calls that have on host-local the effect which e has on leasehold, and whether they are
	// others than e. A later difference is of this kind only if the programs do not differ after
	// those calls, and leasehold's reply is the same.
	instead func(past []Exchange, e Exchange) (calls []Call, isOther bool)
	// example is a sequence of calls whose last one meets the difference; another is too, and may
	// be nil.
	example, another []Call
}

// Differences are all that there are. The tests fail for any other, and for one of these that they
// do not meet.
var Differences = []Difference{
	{
		Call:      "ADD of a container and interface that have an address",
		HostLocal: "fails, or assigns one with another `dataDir`", Leasehold: "the same address",
		Reason: "a runtime that lost the reply repeats the call, and the configuration may have changed since",
		explains: func(past []Exchange, e Exchange) bool {
			return (e.onlyLeaseholdServes("ADD") || e.onlyAddressesDiffer()) &&
				slices.ContainsFunc(past, func(p Exchange) bool {
					return p.attachment() == e.attachment() && p.network() == e.network() &&
						(p.pool() != e.pool() || !e.HostLocal.ok()) && len(held(past, p)) > 0 &&
						keepsThose(held(past, p), e)
				})
		},
		example: []Call{add("c1", plain), add("c1", plain)},
		another: []Call{add("c1", plain).args("IP=10.0.0.9"), add("c1", in(plain, `"dataDir":"/var/lib/world/data"`))},
	},
	{
		Call: "ADD of a container and interface that have an address in another living network namespace, with " +
			"another address requested, or another `dataDir`",
		HostLocal: "an address", Leasehold: "fails",
		Reason: "there are two containers with one ID, and a DEL of one would release the addresses of both",
		explains: func(past []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes(stillInUse) && slices.ContainsFunc(past, func(p Exchange) bool {
				return p.attachment() == e.attachment() && p.network() == e.network() && len(held(past, p)) > 0
			})
		},
		example: []Call{add("c1", plain), add("c1", plain).args("IP=10.0.0.9").in(namespaces[1])},
		another: []Call{add("c1", plain), add("c1", in(plain, `"dataDir":"/var/lib/world/data"`)).in(namespaces[1])},
	},
	{
		Call:      "ADD of a pod with a window whose former container may still run",
		HostLocal: "the next address", Leasehold: "fails for `busyTimeout`",
		Reason: "it gets its address as soon as the container has ended",
		explains: func(past []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes(stillInUse) && slices.ContainsFunc(past, func(p Exchange) bool {
				return p.isADD() && p.pod() != "" && p.pod() == e.pod() && p.pool() == e.pool() && p.ID != e.ID
			})
		},
		example: []Call{add("c1", window).args(pod), add("c2", window).args(pod)},
	},
	{
		Call:      "ADD of a pod that had an address before",
		HostLocal: "the next address, if there is one",
		Leasehold: "the former address, within the window or the cool-down",
		Reason:    "it is what leasehold is for",
		explains: func(past []Exchange, e Exchange) bool {
			ended := released(slices.Concat(past, []Exchange{e}), e)
			hadThose := slices.ContainsFunc(ended, func(p Exchange) bool {
				return p.pod() != "" && p.pod() == e.pod() && p.IfName == e.IfName &&
					intersect(addresses(e.Leasehold), addresses(p.Leasehold))
			})
			return hadThose && (e.onlyAddressesDiffer() || e.onlyLeaseholdServes("ADD"))
		},
		example: []Call{add("c1", plain).args(pod), del("c1", plain).args(pod), add("c2", plain).args(pod)},
		another: []Call{add("c1", window).args(pod), add("c2", window).args(pod).in(netnsOf("c1"))},
	},
	{
		Call:      "ADD that comes to an address which a pod had before",
		HostLocal: "that address", Leasehold: "another one; none while all are held for windows",
		Reason: "it is what leasehold is for",
		explains: func(past []Exchange, e Exchange) bool {
			return slices.ContainsFunc(released(past, e), func(p Exchange) bool {
				return p.pod() != "" && intersect(addresses(e.HostLocal), addresses(p.Leasehold)) &&
					(e.onlyAddressesDiffer() || p.hasWindow() && e.onlyHostLocalServesUnused())
			})
		},
		example: []Call{add("c1", small).args(pod), add("c2", small), del("c1", small), del("c2", small),
			add("c2", small)},
	},
	{
		Call: "ADD that fails because a range set is full, a requested address cannot be assigned, or a route is null",
		HostLocal: "goes on with the next addresses at the following ADD, and releases all that the container and " +
			"interface have",
		Leasehold: "changes nothing",
		Reason:    "the container may use its addresses",
		instead:   func(_ []Exchange, e Exchange) ([]Call, bool) { return nil, e.failsHalfway() },
		example:   []Call{add("c1", plain), add("c2", plain).args("IP=10.9.9.9"), add("c2", plain)},
	},
	{
		Call:      "ADD after range sets were added, removed or exchanged",
		HostLocal: "goes on after the last address of the set with the same number",
		Leasehold: "goes on after the last address of the same set",
		Reason:    "an address that was just released is not assigned again at once",
		explains: func(past []Exchange, e Exchange) bool {
			return e.onlyAddressesDiffer() && slices.ContainsFunc(past, func(p Exchange) bool {
				return p.isADD() && p.pool() == e.pool() && !slices.Equal(p.ranges(), e.ranges())
			})
		},
		example: []Call{add("c1", dual), del("c1", dual), add("c1", onlyV6)},
	},
	{
		Call:      "ADD that comes to an address which a container of the network has with another `dataDir`",
		HostLocal: "that address", Leasehold: "another one; none while all are in use",
		Reason: "the configuration may have changed since its ADD, and both would have the address",
		explains: func(past []Exchange, e Exchange) bool {
			return (e.onlyAddressesDiffer() || e.onlyHostLocalServesUnused()) &&
				slices.ContainsFunc(past, func(p Exchange) bool {
					return p.isADD() && p.network() == e.network() && p.pool() != e.pool() &&
						intersect(addresses(e.HostLocal), held(past, p))
				})
		},
		example: []Call{add("c1", plain), add("c2", in(plain, `"dataDir":"/var/lib/world/data"`))},
	},
	{
		Call:      "ADD of a pod in a `CNI_NETNS` that is no network namespace",
		HostLocal: "an address", Leasehold: "fails",
		Reason: "the sandbox has ended, and a DEL may not follow",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.pod() != "" && e.onlyHostLocalServes("CNI_NETNS is not an existing network namespace")
		},
		example: []Call{add("c1", plain).args(pod).in("/run/netns/none")},
	},
	{
		Call:      "ADD in the plugin's own network namespace",
		HostLocal: "assigns an address, prints the result and then an error", Leasehold: "fails before",
		Reason: "the address would stay in use",
		explains: func(_ []Exchange, e Exchange) bool {
			documents, _ := e.HostLocal.documents()
			return e.Verb == "ADD" && !e.HostLocal.ok() && !e.Leasehold.ok() && len(documents) == 2
		},
		example: []Call{add("c1", plain).in("/proc/self/ns/net")},
	},
	{
		Call: "DEL with an invalid configuration or CNI_ARGS, of a directory that cannot be written, or in the " +
			"plugin's own network namespace",
		HostLocal: "fails", Leasehold: "releases the addresses",
		Reason:   "the configuration may have changed since the ADD, and a runtime may try a DEL only once",
		explains: func(_ []Exchange, e Exchange) bool { return e.onlyLeaseholdServes("DEL") },
		example:  []Call{del("c1", `{"cniVersion":"1.1.0","name":"net"}`)},
	},
	{
		Call:      "DEL with another network or `dataDir` than the ADD's",
		HostLocal: "releases nothing", Leasehold: "releases what the container and interface have",
		Reason: "the configuration may have changed since the ADD",
		instead: func(past []Exchange, e Exchange) ([]Call, bool) {
			calls := releases(past, func(a Exchange) bool {
				return e.Verb == "DEL" && e.Leasehold.ok() && a.attachment() == e.attachment() && a.pool() != e.pool()
			})
			return append(calls, e.Call), calls != nil
		},
		example: []Call{add("c1", plain), add("c2", plain), del("c1", strings.Replace(plain, "net", "other", 1)),
			check("c2", plain), check("c1", plain)},
	},
	{
		Call:      "CHECK with another `dataDir` than the ADD's",
		HostLocal: "fails", Leasehold: "succeeds",
		Reason: "the configuration may have changed since the ADD",
		explains: func(past []Exchange, e Exchange) bool {
			return e.onlyLeaseholdServes("CHECK") && slices.ContainsFunc(past, func(p Exchange) bool {
				return p.isADD() && p.attachment() == e.attachment() && p.network() == e.network() &&
					p.pool() != e.pool() && len(held(past, p)) > 0
			})
		},
		example: []Call{add("c1", plain), check("c1", in(plain, `"dataDir":"/var/lib/world/data"`))},
	},
	{
		Call:      "CHECK with a `prevResult` that names an address of the ranges which the container does not have",
		HostLocal: "succeeds", Leasehold: "fails",
		Reason: "another container may get the address",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes("the container does not have its addresses: prevResult names")
		},
		example: []Call{add("c1", plain), check("c1", with(plain,
			`"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.3/24"}]}`))},
	},
	{
		Call:      "GC with a list of attachments",
		HostLocal: "does nothing", Leasehold: "releases the addresses of others",
		Reason: "the CNI specification",
		instead: func(past []Exchange, e Exchange) ([]Call, bool) {
			calls := releases(past, func(a Exchange) bool { return a.isEndedByGC(e) })
			return append(calls, e.Call), calls != nil
		},
		example: []Call{add("c1", plain), {Verb: "GC", Stdin: with(plain, noneValid)}, check("c1", plain)},
		another: []Call{add("c1", plain), add("c2", plain), add("c3", plain),
			{Verb: "GC", Stdin: with(plain, twoValid)}, check("c1", plain), check("c2", plain), check("c3", plain)},
	},
	{
		Call:      "GC with an invalid configuration or list",
		HostLocal: "does nothing", Leasehold: "fails",
		Reason: "it could release nothing",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.Verb == "GC" && e.onlyHostLocalServes("invalid network configuration: ")
		},
		example: []Call{{Verb: "GC", Stdin: with(plain, `"cni.dev/valid-attachments":[{}]`)}},
	},
	{
		Call:      "STATUS with a configuration with which each ADD fails",
		HostLocal: "succeeds", Leasehold: "fails",
		Reason: "the CNI specification",
		explains: func(_ []Exchange, e Exchange) bool {
			conf, err := e.config()
			return e.Verb == "STATUS" && e.onlyHostLocalServes("") && (err != nil || e.refusesOwnKey() ||
				endsBeforeStart(conf) || len(conf.Name) > 255 || strings.ContainsRune(conf.DataDir, 0) ||
				unusable[filepath.Dir(e.pool())] || !canPrint(conf))
		},
		example: []Call{{Verb: "STATUS", Stdin: strings.Replace(plain, "/24", "/31", 1)}},
		another: []Call{{Verb: "STATUS", Stdin: in(plain, `"resolvConf":"/none"`)}},
	},
	{
		Call:      "an invalid value of a key of the `ipam` section that only leasehold has, or of a pod's annotation",
		HostLocal: "no effect", Leasehold: "ADD and STATUS fail, and CHECK for a key",
		Reason: "who has written it relies on it",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes("invalid pod annotation: ") ||
				e.refusesOwnKey()
		},
		example: []Call{add("c1", in(plain, `"onBusy":"x"`))},
	},
	{
		Call:      "`rangeStart` is the broadcast address, and there is no `rangeEnd`",
		HostLocal: "that address, and then those of the next subnet", Leasehold: "ADD, CHECK and STATUS fail",
		Reason: "the addresses are not of the subnet",
		explains: func(_ []Exchange, e Exchange) bool {
			conf, err := e.config()
			return err == nil && endsBeforeStart(conf) && e.onlyHostLocalServes("invalid network configuration: ")
		},
		example: []Call{add("c1", in(plain, `"rangeStart":"10.0.0.255"`))},
	},
	{
		Call:      "a subnet in ::/96",
		HostLocal: "takes them for IPv4: assigns such addresses, or fails",
		Leasehold: "IPv6 addresses",
		Reason:    "they are what is configured",
		explains: func(_ []Exchange, e Exchange) bool {
			_, msg := e.HostLocal.failure()
			for _, what := range []string{"mixed address families", " overlaps with ", " not in network ::",
				"does not support more than 1 address per family"} {
				if strings.Contains(msg, what) {
					return e.onlyLeaseholdServes(e.Verb) && strings.Contains(e.Stdin, `"subnet":"::`)
				}
			}
			return anyRange(e, func(r allocator.Range, _ allocator.RangeSet) bool {
				subnet, _ := netip.AddrFromSlice(r.Subnet.IP)
				return netip.MustParsePrefix("::/96").Contains(subnet)
			})
		},
		example: []Call{add("c1", strings.Replace(plain, "10.0.0.0/24", "::a00:0/120", 1))},
		another: []Call{add("c1", in(plain, `"ranges":[[{"subnet":"::a00:0/120"},{"subnet":"fd00:1::/64"}]]`))},
	},
	{
		Call:      "a range set with the gateway of one of its ranges in another one",
		HostLocal: "assigns the gateway to a container", Leasehold: "to none",
		Reason: "the router has it",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.Verb == "ADD" && anyRange(e, func(r allocator.Range, set allocator.RangeSet) bool {
				in, _ := set.RangeFor(r.Gateway)
				return in != nil && !in.Gateway.Equal(r.Gateway)
			})
		},
		example: []Call{add("c1", `{"cniVersion":"1.1.0","name":"net","ipam":{"ranges":[[{"subnet":"10.0.0.0/24",`+
			`"rangeStart":"10.0.0.2"},{"subnet":"10.0.1.0/24","gateway":"10.0.0.2"}]]}}`)},
	},
	{
		Call:      "`routes` with null, or without `dst`",
		HostLocal: "prints it", Leasehold: "ADD fails",
		Reason: "runtimes cannot read such a result",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes("invalid network configuration: ipam.routes[")
		},
		example: []Call{add("c1", in(plain, `"routes":[{}]`))},
	},
	{
		Call:      "`resolvConf` is a file with more than 1 MiB",
		HostLocal: "prints what it has", Leasehold: "ADD fails",
		Reason: "no file makes an ADD long",
		explains: func(_ []Exchange, e Exchange) bool {
			return e.onlyHostLocalServes("invalid network configuration: ipam.resolvConf: " + largeFile + " is larger")
		},
		example: []Call{add("c1", in(plain, `"resolvConf":"`+largeFile+`"`))},
	},
	{
		Call:      "`type` is `leasehold`, and there is no `ipam`",
		HostLocal: "fails", Leasehold: "serves it as a chained plugin",
		Reason: "it keeps the MAC address",
		explains: func(_ []Exchange, e Exchange) bool {
			conf := e.decoded()
			return e.onlyLeaseholdServes(e.Verb) && conf.IPAM == nil && string(conf.Type) == `"leasehold"`
		},
		example: []Call{check("c1", `{"cniVersion":"1.1.0","name":"net","type":"leasehold"}`)},
	},
	{
		Call:      "a container ID of more than 4,096 characters",
		HostLocal: "no limit", Leasehold: "ADD and CHECK fail",
		Reason: "it is part of a key of the lease store",
		explains: func(_ []Exchange, e Exchange) bool {
			return len(e.ID) > lease.MaxContainerID && e.onlyHostLocalServes("invalid environment: CNI_CONTAINERID")
		},
		example: []Call{add(strings.Repeat("a", lease.MaxContainerID+1), plain).in(namespaces[0])},
	},
	{
		Call:      "`K8S_POD_*` in CNI_ARGS, without `IgnoreUnknown=1`",
		HostLocal: "ADD and CHECK fail", Leasehold: "serves it",
		Reason: "leasehold knows these keys",
		explains: func(_ []Exchange, e Exchange) bool {
			_, msg := e.HostLocal.failure()
			unknown, found := strings.CutPrefix(msg, "ARGS: unknown args [")
			return found && e.onlyLeaseholdServes(e.Verb) &&
				strings.Count(unknown, `"K8S_POD_`) == strings.Count(unknown, `" "`)+1
		},
		example: []Call{add("c1", plain).args("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0")},
	},
}

// What the examples are made of.
const (
	plain = `{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}`
	small = `{"cniVersion":"1.1.0","name":"net","ipam":{"rangeEnd":"10.0.0.3","subnet":"10.0.0.0/29"}}`
	dual  = `{"cniVersion":"1.1.0","name":"net","ipam":{"ranges":[[{"subnet":"10.0.0.0/24"}],` +
		`[{"subnet":"fd00::/64"}]]}}`
	onlyV6 = `{"cniVersion":"1.1.0","name":"net","ipam":{"ranges":[[{"subnet":"fd00::/64"}]]}}`

	window = `{"cniVersion":"1.1.0","name":"net","ipam":{"subnet":"10.0.0.0/24"},"runtimeConfig":` +
		`{"io.kubernetes.cri.pod-annotations":{"io.kubernetes.cri/reserved-ip-duration":"10m"}}}`

	stillInUse = "the pod's address may still be in use by its former sandbox: "

	pod       = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=u1"
	noneValid = `"cni.dev/valid-attachments":[]`
	twoValid  = `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},` +
		`{"containerID":"c2","ifname":"eth0"}]`
)

func add(id, stdin string) Call   { return eth0("ADD", id, stdin) }
func del(id, stdin string) Call   { return eth0("DEL", id, stdin) }
func check(id, stdin string) Call { return eth0("CHECK", id, stdin) }

func eth0(verb, id, stdin string) Call {
	return Call{Verb: verb, ID: id, Netns: netnsOf(id), IfName: "eth0", Stdin: stdin}
}

func (c Call) args(s string) Call { c.Args = s; return c }
func (c Call) in(s string) Call   { c.Netns = s; return c }

// with adds fields to a configuration, in to its ipam section.
func with(conf, fields string) string { return conf[:len(conf)-1] + "," + fields + "}" }
func in(conf, fields string) string   { return conf[:len(conf)-2] + "," + fields + "}}" }

func (e Exchange) onlyHostLocalServes(errorOfLeasehold string) bool {
	_, msg := e.Leasehold.failure()
	return e.HostLocal.ok() && !e.Leasehold.ok() && strings.HasPrefix(msg, errorOfLeasehold)
}

// onlyHostLocalServesUnused reports whether leasehold fails because it takes addresses for used.
func (e Exchange) onlyHostLocalServesUnused() bool {
	return e.onlyHostLocalServes("no IP addresses available in range set") ||
		e.onlyHostLocalServes("requested IP address is not available")
}

func (e Exchange) onlyLeaseholdServes(verb string) bool {
	return e.Verb == verb && !e.HostLocal.ok() && e.Leasehold.ok()
}

// keepsThose reports whether leasehold's result has an address that the container had in each range
// set in which it had one, or the one that was requested.
func keepsThose(had []netip.Addr, e Exchange) bool {
	conf, err := e.config()
	if err != nil {
		return false
	}
	has := func(a netip.Addr) bool {
		return slices.Contains(had, a) ||
			slices.ContainsFunc(conf.IPArgs, func(ip net.IP) bool { return a == addrOf(ip) })
	}
	for _, set := range conf.Ranges {
		in := func(a netip.Addr) bool { return set.Contains(a.AsSlice()) }
		if slices.ContainsFunc(had, in) && !slices.ContainsFunc(addresses(e.Leasehold), func(a netip.Addr) bool {
			return in(a) && has(a)
		}) {
			return false
		}
	}
	return true
}

// anyRange reports whether a range of the configuration has a property.
func anyRange(e Exchange, has func(allocator.Range, allocator.RangeSet) bool) bool {
	conf, err := e.config()
	if err != nil {
		return false
	}
	for _, set := range conf.Ranges {
		if slices.ContainsFunc(set, func(r allocator.Range) bool { return has(r, set) }) {
			return true
		}
	}
	return false
}

func endsBeforeStart(conf *allocator.IPAMConfig) bool {
	return slices.ContainsFunc(conf.Ranges, func(set allocator.RangeSet) bool {
		return slices.ContainsFunc(set, func(r allocator.Range) bool { return ip.Cmp(r.RangeEnd, r.RangeStart) < 0 })
	})
}

// canPrint reports whether the routes of a result can be printed, and whether resolvConf is one of
// the files that exist.
func canPrint(conf *allocator.IPAMConfig) bool {
	isWrong := func(r *types.Route) bool { return r == nil || r.Dst.IP == nil }
	return !slices.ContainsFunc(conf.Routes, isWrong) &&
		slices.Contains([]string{"", resolvConf, os.DevNull}, conf.ResolvConf)
}
