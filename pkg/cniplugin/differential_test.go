package cniplugin

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The tests of this file compare the parser with host-local's: both must reject a configuration, or
// both must read the same values from it. These are all intended differences:
//
//	what                                     host-local             leasehold
//	rangeStart after the default rangeEnd    accepts, then never    rejects
//	                                         finds the end
//	IPv6 subnets in ::/96                    converts addresses to  keeps the addresses
//	                                         IPv4
//	null among requested addresses           panics                 rejects
//	null or "" for ipam.subnet               rejects                missing
//	invalid rangeStart, rangeEnd or gateway  rejects                ignores
//	without ipam.subnet
//	routes that are null or without dst      prints a result that   rejects
//	                                         callers cannot read
//	"type" and "name" in ipam                must be strings        ignores
//	a key twice in one object                merges the values      uses the last one
//	K8S_POD_* in CNI_ARGS                    unknown                known, and validated
//	network names above 255 characters       fails later            rejects
//	a relative dataDir                       keeps it               makes it absolute
//	a NUL in dataDir                         fails later            rejects
//
// Two more do not concern the parser: leasehold does not assign an address that is the gateway of
// another range of the set (pool.Set.Usable), and of two requested addresses of a set it serves the
// first, while host-local serves a random one (both then fail).

// parsed contains what both parsers read from a configuration.
type parsed struct {
	Ranges    [][]string
	Requested []string
	DataDir   string
	Routes    string
}

func ours(stdin []byte, args string) (parsed, error) {
	var out parsed
	c, err := loadConfig(stdin)
	if err != nil {
		return out, err
	}
	ip, _, _, err := parseArgs(args)
	if err != nil {
		return out, err
	}
	sets, err := c.sets()
	if err != nil {
		return out, err
	}
	if len(sets) == 0 {
		return out, fmt.Errorf("no ranges")
	}
	for _, set := range sets {
		var ranges []string
		for _, r := range set {
			ranges = append(ranges, fmt.Sprintf("%s %s-%s %s", r.Subnet, r.Start, r.End, r.Gateway))
		}
		out.Ranges = append(out.Ranges, ranges)
	}
	requested, err := c.requested(ip)
	if err != nil {
		return out, err
	}
	for _, a := range requested {
		out.Requested = append(out.Requested, a.String())
	}
	pool, err := c.pool()
	if err != nil {
		return out, err
	}
	out.DataDir = pool.DataDir
	routes, err := readRoutes(c.section.Routes)
	if err != nil {
		return out, err
	}
	out.Routes = asJSON(routes)
	return out, nil
}

func upstreams(stdin []byte, args string) (out parsed, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("upstream panicked: %v", r)
		}
	}()
	c, _, err := allocator.LoadIPAMConfig(stdin, args)
	if err != nil {
		return out, err
	}
	for _, set := range c.Ranges {
		var ranges []string
		for _, r := range set {
			subnet := net.IPNet(r.Subnet)
			ranges = append(ranges, fmt.Sprintf("%s %s-%s %s", subnet.String(), r.RangeStart, r.RangeEnd, r.Gateway))
		}
		out.Ranges = append(out.Ranges, ranges)
	}
	seen := map[string]bool{}
	for _, ip := range c.IPArgs {
		if s := ip.String(); !seen[s] {
			seen[s] = true
			out.Requested = append(out.Requested, s)
		}
	}
	if out.DataDir = c.DataDir; out.DataDir == "" {
		out.DataDir = policy.DefaultDataDir
	}
	out.DataDir, _ = filepath.Abs(out.DataDir)
	out.Routes = asJSON(c.Routes)
	return out, nil
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	if string(b) == "[]" {
		return "null"
	}
	return string(b)
}

// mayDiffer reports whether the table above allows a difference for this configuration.
func mayDiffer(stdin []byte, got, want parsed, wantErr error) bool {
	for _, set := range slices.Concat(got.Ranges, want.Ranges) {
		for _, r := range set {
			var subnet, run string
			fmt.Sscan(r, &subnet, &run)
			start, end, _ := strings.Cut(run, "-")
			if inLowest96(subnet) || isEmptyRun(start, end) {
				return true
			}
		}
	}
	var top struct {
		Name string
		IPAM addressRange
	}
	_ = json.Unmarshal(stdin, &top)
	ranges := top.IPAM
	return ranges.Subnet == "" && (ranges != addressRange{} || noSubnet.Match(stdin)) ||
		len(top.Name) > maxNetworkName || strings.ContainsRune(want.DataDir, 0) ||
		wantErr != nil && strings.HasPrefix(wantErr.Error(), "upstream panicked") ||
		nullRoute.MatchString(want.Routes) || strings.Contains(want.Routes, `"dst":"\u003cnil\u003e"`)
}

var noSubnet = regexp.MustCompile(`(?i)"subnet"\s*:\s*(null|"")`)

var nullRoute = regexp.MustCompile(`[\[,]null[\],]`)

func isEmptyRun(start, end string) bool {
	s, errS := netip.ParseAddr(start)
	e, errE := netip.ParseAddr(end)
	return errS != nil || errE != nil || e.Less(s)
}

func inLowest96(subnet string) bool {
	p, err := netip.ParsePrefix(subnet)
	return err == nil && p.Addr().Is6() && netip.MustParsePrefix("::/96").Overlaps(p)
}

func compare(t interface {
	Helper()
	Fatalf(string, ...any)
}, stdin []byte, args string) (accepted, skipped bool) {
	t.Helper()
	got, gotErr := ours(stdin, args)
	want, wantErr := upstreams(stdin, args)
	if mayDiffer(stdin, got, want, wantErr) {
		return false, true
	}
	if (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%s\nCNI_ARGS %q\nours:     %v\nupstream: %v", stdin, args, gotErr, wantErr)
	}
	if gotErr == nil {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s\nCNI_ARGS %q\n-upstream +ours:\n%s", stdin, args, diff)
		}
	}
	return gotErr == nil, false
}

// TestLikeUpstream draws configurations, most of them nearly valid, a third of them with one value
// replaced.
func TestLikeUpstream(t *testing.T) {
	var accepted, rejected int
	rounds := 1
	if testing.Short() {
		rounds = 5 // rapid draws a fifth then, too few to compare anything
	}
	for range rounds {
		rapid.Check(t, func(t *rapid.T) { compareOne(t, &accepted, &rejected) })
	}
	if accepted < 10 || rejected < 10 {
		t.Errorf("%d configurations were accepted and %d rejected by both, want at least 10 each", accepted, rejected)
	}
}

func compareOne(t *rapid.T, accepted, rejected *int) {
	conf := drawConf(t)
	if rapid.IntRange(0, 2).Draw(t, "broken") == 0 {
		conf = breakOne(t, conf)
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	switch yes, skipped := compare(t, stdin, drawArgs(t)); {
	case skipped:
	case yes:
		*accepted++
	default:
		*rejected++
	}
}

type object = map[string]any

func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// sometimes sets a key in one of n cases.
func sometimes(t *rapid.T, o object, key string, n int, draw func() any) {
	if rapid.IntRange(1, n).Draw(t, key+"?") == 1 {
		o[key] = draw()
	}
}

func drawConf(t *rapid.T) object {
	ipam := object{"type": "host-local"}
	sometimes(t, ipam, "ranges", 2, func() any { return drawSets(t) })
	if _, found := ipam["ranges"]; !found || pick(t, "both", false, false, true) {
		for k, v := range drawRange(t) {
			ipam[k] = v
		}
	}
	sometimes(t, ipam, "dataDir", 4, func() any { return pick(t, "dir", "/run/x", "", "rel/../x", "/a//b/") })
	sometimes(t, ipam, "routes", 4, func() any {
		return []any{object{"dst": pick(t, "dst", "0.0.0.0/0", "fd00::/8", "10.0.0.7/24", "10.0.0.7"),
			"gw": pick(t, "gw", "10.0.0.1", "", "x")}}
	})
	conf := object{"name": "net", "cniVersion": pick(t, "version", "", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0",
		"1.0.0", "1.1.0"), "ipam": ipam}
	runtime := object{}
	sometimes(t, runtime, "ipRanges", 5, func() any { return drawSets(t) })
	sometimes(t, runtime, "ips", 5, func() any { return []any{drawIP(t), drawIP(t)} })
	sometimes(t, conf, "runtimeConfig", 2, func() any { return runtime })
	sometimes(t, conf, "args", 6, func() any { return object{"cni": object{"ips": []any{drawIP(t)}}} })
	return conf
}

func drawSets(t *rapid.T) any {
	sets := []any{}
	for range rapid.IntRange(0, 3).Draw(t, "sets") {
		set := []any{}
		for range pick(t, "ranges", 1, 1, 2, 0) {
			set = append(set, drawRange(t))
		}
		sets = append(sets, set)
	}
	return sets
}

func drawRange(t *rapid.T) object {
	r := object{"subnet": mostly(t, "subnet",
		[]string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/30", "10.0.3.0/024", "fd00::/64", "fd00:1::/64",
			"fd00:2::/126", "10.9.0.0/16"},
		[]string{"0.0.0.0/0", "10.0.0.7/24", "10.0.0.0/31", "10.0.0.0/33", "fd00::/127", "fd00::1/64", "fd00::/8",
			"::/0", "::a00:0/120", "::ffff:10.0.0.0/120", "10.0.0.0", ""})}
	for _, key := range []string{"rangeStart", "rangeEnd", "gateway"} {
		sometimes(t, r, key, 8, func() any { return drawIP(t) })
	}
	return r
}

func drawIP(t *rapid.T) any {
	return mostly(t, "ip",
		[]string{"10.0.0.0", "10.0.0.1", "10.0.0.5", "10.0.0.9", "10.0.0.255", "10.0.1.7", "10.0.2.2",
			"::ffff:10.0.0.9", "fd00::1", "fd00::5", "fd00::ff", "fd00:1::7", ""},
		[]string{"10.0.0.09", "fe80::1%eth0", "10.0.0.9/24", "fd00::9/64", "10.0.0.9/33", "/24", "x"})
}

// mostly draws a good value, and a bad one in one of ten cases.
func mostly(t *rapid.T, label string, good, bad []string) string {
	if rapid.IntRange(1, 10).Draw(t, label+" bad?") == 1 {
		return pick(t, label, bad...)
	}
	return pick(t, label, good...)
}

func drawArgs(t *rapid.T) string {
	return mostly(t, "args", []string{"", "", "IgnoreUnknown=1;A=b", "A=b;IgnoreUnknown=True",
		"IP=10.0.0.9;IP=10.0.0.5", "IP=10.0.0.9/24", "IP=", "IP=10.0.0.9"},
		[]string{"IP=x", "IP=x;IP=10.0.0.5", "A=b", "A=b;IgnoreUnknown=0", "IgnoreUnknown=1;IgnoreUnknown=false;A=b",
			"IgnoreUnknown=yes", "IgnoreUnknown=", "IgnoreUnknown", "IgnoreUnknown=1;A=b=c", "IgnoreUnknown=1;", ";",
			"=", "IgnoreUnknown=1;=", "ip=10.0.0.9", "X_K8S_POD_NAME=a", " IP=10.0.0.9"})
}

// breakOne replaces one value of the configuration, except "type", which only host-local reads.
func breakOne(t *rapid.T, conf object) object {
	var places []func(any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case object:
			for _, key := range sortedKeys(v) {
				if key == "type" {
					continue
				}
				places = append(places, func(n any) { v[key] = n })
				walk(v[key])
			}
		case []any:
			for i := range v {
				places = append(places, func(n any) { v[i] = n })
				walk(v[i])
			}
		}
	}
	walk(conf)
	broken := []any{nil, "", "x", 5, -1.5, true, []any{}, []any{nil}, []any{5}, object{},
		object{"subnet": "10.9.0.0/24"}}
	places[rapid.IntRange(0, len(places)-1).Draw(t, "place")](pick(t, "with", broken...))
	return conf
}

// FuzzLikeUpstream lets the fuzzer draw the configurations.
func FuzzLikeUpstream(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { compareOne(t, new(int), new(int)) }))
}
