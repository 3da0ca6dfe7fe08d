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
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
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
			check.NoDiff(t, cmp.Diff(decoded(t, want), decoded(t, stdout.String())))
			check.Equal(t, stderr.String(), "leasehold: the window is cut to 24h\n", "stderr")
		})
	}
}

func decoded(t *testing.T, text string) (out any) {
	t.Helper()
	must.Succeed(t, json.Unmarshal([]byte(text), &out), text)
	return out
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
		check.Equal(t, code(t, p.Add(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), ""))), 5, "the code")
		check.Slices(t, r.calls, want, "repeated ADD", again, "calls")
		if !again && r.who != (lease.Attachment{ContainerID: "c1", IfName: "eth0"}) {
			t.Errorf("released %+v", r.who)
		}
	}
}

// TestOwnNetworkNamespace verifies that a container may have the plugin's network namespace only
// with CNI_NETNS_OVERRIDE.
func TestOwnNetworkNamespace(t *testing.T) {
	p, _, _ := plugin(&recorder{result: dualStack})
	own := addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")
	own.Netns = "/proc/self/ns/net"
	for override, want := range map[string]uint{"1": 0, "true": 0, "TRUE": 0, "0": 4} {
		p.NetnsOverride = override
		check.Equal(t, code(t, p.Add(own)), want, "the code with CNI_NETNS_OVERRIDE="+override)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

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
		check.Contains(t, stderr.String(), "panicked", verb)
		check.Contains(t, stderr.String(), "plugin_test.go", verb, "without a stack")
		if verb == verbDel && strings.Contains(err.Error(), "no such file or directory") {
			t.Errorf("containerd would take DEL's error %v for success", err)
		}
	}
}

// FuzzStdin verifies that no configuration makes a verb panic or fail without one of the documented
// codes, and that DEL always succeeds.
func FuzzStdin(f *testing.F) {
	for _, c := range cases.Read(f, "testdata/calls.txt")[1:] {
		f.Add(stdinOf(strings.Join(c.Given[1:], "\n")))
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
		must.Succeed(t, p.Del(args), "DEL")
		if strings.Contains(stderr.String(), "panicked") {
			t.Error(stderr)
		}
	})
}
