package cniplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// recorder is a Service that records its calls.
type recorder struct {
	calls  []string
	req    ipam.Request
	who    lease.Attachment
	where  operation.Scope
	pool   lease.Pool
	valid  []lease.Attachment
	result ipam.Result
	err    error
	panics bool
	during func(context.Context) // called by Assign and Status; may be nil

	keeps net.HardwareAddr // the MAC of the lease; nil if there is no lease
	addrs []netip.Addr
	has   net.HardwareAddr
	fixed []bool
}

func (r *recorder) called(what string) error {
	r.calls = append(r.calls, what)
	if r.panics {
		panic("open /x: no such file or directory")
	}
	return r.err
}

func (r *recorder) Assign(ctx context.Context, req ipam.Request) (ipam.Result, error) {
	r.req = req
	if r.during != nil {
		r.during(ctx)
	}
	return r.result, r.called("Assign")
}

func (r *recorder) Release(_ context.Context, who lease.Attachment, in operation.Scope) error {
	r.who, r.where = who, in
	return r.called("Release")
}

func (r *recorder) Verify(_ context.Context, req ipam.Request) error {
	r.req = req
	return r.called("Verify")
}

func (r *recorder) Collect(_ context.Context, in operation.Scope, valid []lease.Attachment) error {
	r.pool, r.valid = in.Pool, valid
	return r.called("Collect")
}

func (r *recorder) Status(_ context.Context, hint operation.Scope) error {
	r.pool = hint.Pool
	return r.called("Status")
}

func (r *recorder) KeepMAC(_ context.Context, who lease.Attachment, addrs []netip.Addr, has net.HardwareAddr,
	fixed bool) (net.HardwareAddr, bool, error) {
	r.who, r.addrs, r.has, r.fixed = who, addrs, has, append(r.fixed, fixed)
	if r.keeps == nil || fixed {
		return has, r.keeps != nil, r.called("KeepMAC")
	}
	return r.keeps, true, r.called("KeepMAC")
}

// plugin returns a Plugin that calls the recorder, and its output.
func plugin(r *recorder) (p *Plugin, stdout, stderr *bytes.Buffer) {
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return &Plugin{Service: r, Stdout: stdout, Stderr: stderr}, stdout, stderr
}

// code returns the CNI code of a verb's error; 0 if it is nil.
func code(t *testing.T, err error) uint {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v has no code", err)
	}
	return e.Code
}

var dualStack = ipam.Result{
	Addresses: []ipam.Assigned{
		{Address: netip.MustParsePrefix("10.0.0.2/24"), Gateway: netip.MustParseAddr("10.0.0.1")},
		{Address: netip.MustParsePrefix("fd00::2/64"), Gateway: netip.MustParseAddr("fd00::1")},
	},
	Notes: []string{"the window is cut to 24h"},
}

// TestWarnPrintsAtTheEnd warns while a verb runs, which may hold locks then, and before a panic.
func TestWarnPrintsAtTheEnd(t *testing.T) {
	for _, panics := range []bool{false, true} {
		r := &recorder{panics: panics}
		p, _, stderr := plugin(r)
		r.during = func(context.Context) {
			p.Warn("a record is damaged")
			if stderr.Len() > 0 {
				t.Errorf("while the verb runs: %q", stderr)
			}
		}
		_ = p.Add(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), ""))
		if !strings.HasPrefix(stderr.String(), "leasehold: a record is damaged\n") {
			t.Errorf("panics %v: %q", panics, stderr)
		}
		if err := p.Add(addArgs([]byte("{"), "")); err == nil || strings.Count(stderr.String(), "damaged") != 1 {
			t.Errorf("a second verb: %v, %q", err, stderr)
		}
	}
}

func TestAddPrintsTheRequestedVersion(t *testing.T) {
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# a comment\n; another\nnameserver 10.0.0.53 # the first word counts\n nameserver fd00::53\n" +
		"domain a.example\nsearch b.example c.example\noptions ndots:5 rotate\nnameserver\nsortlist x y\n"
	must.Succeed(t, os.WriteFile(resolvConf, []byte(text), 0o600))
	section := `"name":"net","ipam":{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/16","gw":"fd00::9"}],"resolvConf":"` + resolvConf + `"}}`
	const dns = `"dns":{"nameservers":["10.0.0.53","fd00::53"],"domain":"a.example","search":["b.example",` +
		`"c.example"],"options":["ndots:5","rotate"]}`
	const routes = `"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/16","gw":"fd00::9"}]`
	modern := func(v string) string {
		return `{"cniVersion":"` + v + `","ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1"},` +
			`{"address":"fd00::2/64","gateway":"fd00::1"}],` + routes + `,` + dns + `}`
	}
	withFamily := func(v string) string {
		return `{"cniVersion":"` + v + `","ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1"},` +
			`{"version":"6","address":"fd00::2/64","gateway":"fd00::1"}],` + routes + `,` + dns + `}`
	}
	old := func(v string) string {
		return `{"cniVersion":"` + v + `","ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1",` +
			`"routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64","gateway":"fd00::1",` +
			`"routes":[{"dst":"fd01::/16","gw":"fd00::9"}]},` + dns + `}`
	}
	for version, want := range map[string]string{
		"": old("0.1.0"), "0.1.0": old("0.1.0"), "0.2.0": old("0.2.0"),
		"0.3.0": withFamily("0.3.0"), "0.3.1": withFamily("0.3.1"), "0.4.0": withFamily("0.4.0"),
		"1.0.0": modern("1.0.0"), "1.1.0": modern("1.1.0"),
	} {
		t.Run(version, func(t *testing.T) {
			r := &recorder{result: dualStack}
			p, stdout, stderr := plugin(r)
			must.Succeed(t, p.Add(addArgs([]byte(`{"cniVersion":"`+version+`",`+section), "")))
			if diff := cmp.Diff(decoded(t, want), decoded(t, stdout.String())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if stderr.String() != "leasehold: the window is cut to 24h\n" {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

func decoded(t *testing.T, text string) (out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out
}

// TestAddValidatesBeforeItAssigns verifies that ADD assigns no address if the result could not be
// printed, or if skel would reject the call after it.
func TestAddValidatesBeforeItAssigns(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.Succeed(t, syscall.Mkfifo(fifo, 0o600))
	ok := conf(`"ipam":{"subnet":"10.0.0.0/24"}`)
	with := func(field string) *skel.CmdArgs {
		return addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24",`+field+`}`), "")
	}
	change := func(f func(*skel.CmdArgs)) *skel.CmdArgs { a := addArgs(ok, ""); f(a); return a }
	tests := []struct {
		name string
		args *skel.CmdArgs
		code uint
		want string
	}{
		{"invalid JSON", addArgs([]byte(`{"name":"net"`), ""), 6, "unexpected end"},
		{"a JSON array", addArgs([]byte(`["net"]`), ""), 6, "array"},
		{"invalid CNI_ARGS", addArgs(ok, "x"), 4, `invalid pair "x"`},
		{"a missing resolv.conf", with(`"resolvConf":"/does/not/exist"`), 7, `ipam.resolvConf: open /does/not/exist`},
		{"a FIFO as resolv.conf", with(`"resolvConf":"` + fifo + `"`), 7, "not a regular file"},
		{"a number for a resolv.conf", with(`"resolvConf":5`), 7, `ipam.resolvConf: want a string`},
		{"a route without a destination", with(`"routes":[{"dst":"0.0.0.0/0"},{"gw":"10.0.0.1"}]`), 7,
			`ipam.routes[1]: dst is missing`},
		{"a string for routes", with(`"routes":"0.0.0.0/0"`), 7, `want a list of objects such as`},
		{"null for a route", with(`"routes":[null]`), 7, `ipam.routes[0]: dst is missing`},
		{"an invalid destination", with(`"routes":[{"dst":"x"}]`), 7,
			`ipam.routes: invalid CIDR address: x; want a list`},
		{"a string for an MTU", with(`"routes":[{"dst":"0.0.0.0/0","mtu":"x"}]`), 7,
			`ipam.routes: json: cannot unmarshal string`},
		{"the plugin's own network namespace", change(func(a *skel.CmdArgs) { a.Netns = "/proc/self/ns/net" }), 4,
			"is the plugin's own network namespace"},
		{"a container ID too long for a key of the store",
			change(func(a *skel.CmdArgs) { a.ContainerID = strings.Repeat("c", 4097) }), 4, "at most 4096 characters"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			p, stdout, _ := plugin(r)
			err := p.Add(tt.args)
			if code(t, err) != tt.code || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v with code %d; want %d and %q in it", err, code(t, err), tt.code, tt.want)
			}
			if len(r.calls) > 0 || stdout.Len() > 0 {
				t.Errorf("calls %v, printed %q", r.calls, stdout)
			}
		})
	}

	r := &recorder{result: dualStack}
	p, _, _ := plugin(r)
	own := change(func(a *skel.CmdArgs) { a.Netns = "/proc/self/ns/net" })
	for _, p.NetnsOverride = range []string{"1", "true", "TRUE"} {
		if err := p.Add(own); err != nil {
			t.Errorf("the plugin's own namespace with CNI_NETNS_OVERRIDE=%s: %v", p.NetnsOverride, err)
		}
	}
}

// TestResultsAndWaitsAreLogged verifies that LogCall gets the result of a call, its duration, and
// the sum of its waits for the store's lock.
func TestResultsAndWaitsAreLogged(t *testing.T) {
	dir := t.TempDir()
	s := store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")})
	for result, r := range map[string]*recorder{
		"ok": {result: dualStack}, "11": {err: store.ErrBusy},
	} {
		var want time.Duration
		r.during = func(ctx context.Context) {
			for range 2 {
				if err := s.Update(ctx, func(*store.Tx) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		}
		var got []rundir.Call
		p, _, _ := plugin(r)
		p.LogCall = func(c rundir.Call) { got = append(got, c) }
		s.Timed = func(waited time.Duration) {
			want += waited
			p.Timed(waited)
		}
		began := time.Now()
		err := p.Add(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), ""))
		took := time.Since(began)
		if (err == nil) != (result == "ok") || len(got) != 1 || got[0].Verb != "ADD" || got[0].Result != result ||
			want == 0 || got[0].Waited != want || got[0].Took < want || got[0].Took > took {
			t.Errorf("result %s after %s, of which %s were waits: logged %+v, error %v", result, took, want, got, err)
		}
	}
}

// TestAddReleasesWhatItCannotPrint verifies that ADD releases its addresses if printing the result
// fails, unless the container had them before.
func TestAddReleasesWhatItCannotPrint(t *testing.T) {
	for again, want := range map[bool][]string{false: {"Assign", "Release"}, true: {"Assign"}} {
		r := &recorder{result: dualStack}
		r.result.Existing = again
		p, _, _ := plugin(r)
		p.Stdout = broken{}
		if err := p.Add(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")); code(t, err) != 5 {
			t.Errorf("error %v, want code 5", err)
		}
		if !slices.Equal(r.calls, want) {
			t.Errorf("repeated ADD: %t; calls %v, want %v", again, r.calls, want)
		}
		if !again && r.who != (lease.Attachment{ContainerID: "c1", IfName: "eth0"}) {
			t.Errorf("released %+v", r.who)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestDelUsesValidFields verifies which fields of a configuration DEL uses if others are invalid.
func TestDelUsesValidFields(t *testing.T) {
	net := lease.Pool{DataDir: "/run/x", Network: "net"}
	tests := []struct {
		name, stdin string
		pool        lease.Pool
		sets        []string
	}{
		{"all of it", string(conf(`"ipam":{"dataDir":"/run/x","subnet":"10.0.0.0/24"}`)), net,
			[]string{"10.0.0.1-10.0.0.254"}},
		{"the pool and the ranges, if a policy is invalid",
			string(conf(`"ipam":{"dataDir":"/run/x","subnet":"10.0.0.0/24","maxHeldShare":7}`)), net,
			[]string{"10.0.0.1-10.0.0.254"}},
		{"nothing, if the directory is invalid", string(conf(`"ipam":{"dataDir":5,"subnet":"10.0.0.0/24"}`)),
			lease.Pool{}, []string{}},
		{"the pool, if the ranges are invalid",
			string(conf(`"ipam":{"dataDir":"/run/x","subnet":"10.0.0.0/24","ranges":[[]]}`)), net, []string{}},
		{"nothing, without ipam", string(conf(`"type":"bridge"`)), lease.Pool{}, []string{}},
		{"nothing, with invalid JSON", `{`, lease.Pool{}, []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			p, _, _ := plugin(r)
			must.Succeed(t, p.Del(addArgs([]byte(tt.stdin), "")))
			if sets := texts(r.where.Sets); r.where.Pool != tt.pool || !slices.Equal(sets, tt.sets) {
				t.Errorf("pool %+v, sets %v; want %+v, %v", r.where.Pool, sets, tt.pool, tt.sets)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	const subnet = `"ipam":{"subnet":"10.0.0.0/24"}`
	tests := []struct {
		name, stdin string
		prev        []netip.Addr
	}{
		{"without a prevResult", `{"cniVersion":"1.0.0","name":"net",` + subnet + `}`, nil},
		{"with a prevResult of the current version",
			`{"cniVersion":"1.1.0","name":"net",` + subnet +
				`,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}]}}`,
			[]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}},
		{"with a prevResult of an older version",
			`{"cniVersion":"0.4.0","name":"net",` + subnet +
				`,"prevResult":{"ips":[{"version":"4","address":"10.0.0.2/24","interface":0}],` +
				`"interfaces":[{"name":"eth0"}]}}`,
			[]netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		{"with a prevResult without addresses",
			`{"cniVersion":"1.0.0","name":"net",` + subnet + `,"prevResult":{"cniVersion":"1.0.0"}}`, nil},
		{"with an invalid annotation",
			`{"cniVersion":"1.0.0","name":"net",` + subnet +
				`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` +
				`{"io.kubernetes.cri/reserved-ip-duration":"abc"}}}`, nil},
	}
	for _, prev := range []string{`5`, `{"cniVersion":"9.9.9"}`, `{"ips":[{"address":"x"}]}`,
		`{"cniVersion":"0.4.0","ips":[null]}`} { // host-local does not read it
		stdin := `{"cniVersion":"0.4.0","name":"net",` + subnet + `,"prevResult":` + prev + `}`
		tests = append(tests, tests[0])
		tests[len(tests)-1].name, tests[len(tests)-1].stdin = "with the prevResult "+prev, stdin
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			p, stdout, _ := plugin(r)
			must.Succeed(t, p.Check(addArgs([]byte(tt.stdin), "")))
			if !slices.Equal(r.req.Prev, tt.prev) || r.req.ContainerID != "c1" || len(r.req.Sets) != 1 {
				t.Errorf("request %+v, want prevResult %v", r.req, tt.prev)
			}
			if stdout.Len() > 0 {
				t.Errorf("CHECK printed %q", stdout)
			}
		})
	}
}

func TestGC(t *testing.T) {
	pool := lease.Pool{DataDir: "/run/x", Network: "net"}
	tests := []struct {
		name, fields string
		code         uint
		want         recorder
	}{
		{"no list", `"ipam":{"dataDir":"/run/x"}`, 0, recorder{}},
		{"no list and no ipam", `"type":"bridge"`, 0, recorder{}},
		{"null is an empty list", `"ipam":{"dataDir":"/run/x"},"cni.dev/valid-attachments":null`, 0,
			recorder{calls: []string{"Collect"}, pool: pool}},
		{"a list, and invalid ranges",
			`"ipam":{"dataDir":"/run/x","ranges":[[]]},"cni.dev/valid-attachments":[{"containerID":"a",` +
				`"ifname":"eth0"}]`,
			0,
			recorder{calls: []string{"Collect"}, pool: pool,
				valid: []lease.Attachment{{ContainerID: "a", IfName: "eth0"}}}},
		{"a list with an invalid element",
			`"ipam":{"dataDir":"/run/x"},"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{}]`, 7,
			recorder{}},
		{"a list without ipam", `"cni.dev/valid-attachments":[]`, 7, recorder{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			p, _, _ := plugin(r)
			if err := p.GC(&skel.CmdArgs{StdinData: conf(tt.fields)}); code(t, err) != tt.code {
				t.Errorf("error %v, want code %d", err, tt.code)
			}
			if diff := cmp.Diff(tt.want, *r, cmp.AllowUnexported(recorder{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestEveryVerbSurvivesAPanic verifies that a panic is printed to stderr and returned as an error
// with a code.
func TestEveryVerbSurvivesAPanic(t *testing.T) {
	stdin := conf(`"ipam":{"subnet":"10.0.0.0/24"},"cni.dev/valid-attachments":null`)
	for verb, want := range map[string]uint{verbAdd: 11, verbDel: 11, verbCheck: 11, verbGC: 11, verbStatus: 50} {
		p, stdout, stderr := plugin(&recorder{panics: true})
		var logged []rundir.Call
		p.LogCall = func(c rundir.Call) { logged = append(logged, c) }
		funcs := p.Funcs()
		call := map[string]func(*skel.CmdArgs) error{verbAdd: funcs.Add, verbDel: funcs.Del, verbCheck: funcs.Check,
			verbGC: funcs.GC, verbStatus: funcs.Status}[verb]
		err := call(addArgs(stdin, ""))
		if code(t, err) != want || stdout.Len() > 0 {
			t.Errorf("%s: error %v, printed %q; want code %d", verb, err, stdout, want)
		}
		if len(logged) != 1 || logged[0].Verb != verb || logged[0].Result != strconv.FormatUint(uint64(want), 10) {
			t.Errorf("%s: logged %+v", verb, logged)
		}
		if !strings.Contains(stderr.String(), "panicked") || !strings.Contains(stderr.String(), "plugin_test.go") {
			t.Errorf("%s: stderr %.200q has no stack", verb, stderr)
		}
		if verb == verbDel && strings.Contains(err.Error(), "no such file or directory") {
			t.Errorf("containerd would take DEL's error %v for success", err)
		}
	}
}

// seedConfigs is the seed corpus of the fuzz targets.
var seedConfigs = []string{
	`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}`,
	`{"cniVersion":"0.3.1","name":"net","ipam":{"ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.5",` +
		`"rangeEnd":"10.0.0.9","gateway":"10.0.0.254"},{"subnet":"10.0.1.0/24"}],[{"subnet":"fd00::/64"}]],` +
		`"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}],"dataDir":"/run/x"}}`,
	`{"cniVersion":"1.0.0","name":"net","ipam":{},"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/24"}]],` +
		`"ips":["10.0.0.7/24","fd00::1"],` +
		`"io.kubernetes.cri.pod-annotations":{"io.kubernetes.cri/reserved-ip-duration":"10"}},` +
		`"args":{"cni":{"ips":["10.0.0.8"]}}}`,
	`{"cniVersion":"1.1.0","name":"net","ipam":{"subnet":"10.0.0.0/24","onBusy":"refuse","busyTimeout":"1m",` +
		`"maxHeldShare":0.5,"cniCacheDirs":["/x"]},"cni.dev/valid-attachments":[{"containerID":"a",` +
		`"ifname":"eth0"}]}`,
	`{"cniVersion":"1.0.0","name":"net","ipam":{"subnet":"10.0.0.0/24"},"prevResult":{"cniVersion":"1.0.0",` +
		`"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1"}]}}`,
	`{"cniVersion":"0.4.0","name":"net","ipam":{"subnet":"10.0.0.0/24"},"prevResult":{"ips":[null]}}`,
}

// FuzzStdin verifies that no configuration makes a verb panic or fail without one of the documented
// codes, and that DEL always succeeds.
func FuzzStdin(f *testing.F) {
	for _, seed := range seedConfigs {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stdin []byte) {
		if bytes.Contains(bytes.ToLower(stdin), []byte("resolvconf")) {
			t.Skip() // the field may name any file of this machine
		}
		r := &recorder{}
		p, _, stderr := plugin(r)
		args := addArgs(stdin, "")
		for verb, call := range map[string]func(*skel.CmdArgs) error{verbAdd: p.Add, verbCheck: p.Check, verbGC: p.GC,
			verbStatus: p.Status} {
			switch c := code(t, call(args)); c {
			case 0, 5, 6, 7, 50:
			default:
				t.Errorf("%s: code %d", verb, c)
			}
		}
		if err := p.Del(args); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if strings.Contains(stderr.String(), "panicked") {
			t.Error(stderr)
		}
	})
}
