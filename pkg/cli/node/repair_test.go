package node

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/built"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
	"github.com/leasehold-cni/leasehold/test/repairs"
)

// TestRepairsDoNoHarm has the checks of a node make findings of every reason that the sources name,
// in the variants that lead to different repairs.
func TestRepairsDoNoHarm(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "leasehold")
	must.Succeed(t, os.WriteFile(plugin, built.Plugin(t), 0o755))
	found, reasons := nodeFindings(t), inactive(t)
	for _, reason := range reasons {
		found = append(found, advices(t, plugin, reason)...)
	}
	repairs.Check(t, found, reasons...)
}

// inactive returns the reasons of package cniconf for which leasehold is not active.
func inactive(t *testing.T) []string {
	t.Helper()
	reasons := map[string]bool{}
	for _, name := range repairs.Find(t, "../../cniconf", `set\(Inactive, (\w+),`) {
		reasons[name] = true
	}
	for _, name := range repairs.Find(t, "../../cniconf", `(?:return Inactive, |State: Inactive, Reason: )(\w+),`) {
		reasons[name] = true
	}
	if len(reasons) < 9 {
		t.Fatalf("package cniconf has the reasons %v; the test expects at least nine", reasons)
	}
	return slices.Collect(maps.Keys(reasons))
}

// newProc returns a /proc that shows only this process.
func newProc(t *testing.T) string {
	t.Helper()
	proc := t.TempDir()
	must.Succeed(t, errors.Join(os.Mkdir(filepath.Join(proc, strconv.Itoa(os.Getpid())), 0o755),
		os.Mkdir(filepath.Join(proc, "self"), 0o755),
		os.WriteFile(filepath.Join(proc, "self/mountinfo"), []byte("no namespace\n"), 0o600)))
	return proc
}

// advices returns the findings about a network for which leasehold is not active: with and without
// the plugin, another configuration that names leasehold, an agent, and a plugin that
// calls leasehold, and whether that is known. plugin is the path of the plugin.
func advices(t *testing.T, plugin, reason string) (all []cli.Finding) {
	t.Helper()
	for variant := range 32 {
		has := func(i int) bool { return variant&(1<<i) > 0 }
		dir := t.TempDir()
		n := &nodeDoctor{Runtime: cniconf.Runtime{BinDirs: []string{dir}}}
		s := cniconf.Status{Reason: reason, File: filepath.Join(dir, "10-net.conflist"), CanName: has(0),
			Binary: filepath.Join(dir, "leasehold")}
		if has(1) {
			must.Succeed(t, os.Symlink(plugin, s.Binary))
		}
		if has(2) {
			other := filepath.Join(dir, "20-net.conflist")
			content := `{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"leasehold"}}]}`
			must.Succeed(t, os.WriteFile(other, []byte(content), 0o600))
			n.conf = cniconf.Load(dir, cniconf.Rules{})
		}
		f := cli.Finding{Reason: reason}
		var unknown error
		if has(4) {
			unknown = errors.New("/proc cannot be read")
		}
		f.Repair, f.Decide = n.advise(s, has(3), unknown)
		if strings.Contains(f.Decide, "no agent runs") && unknown != nil {
			t.Errorf("%s: %q, where that is not known", reason, f.Decide)
		}
		if len(f.Repair) > 0 && strings.Contains(f.Repair[0], "--cni-bin-dir") && !(has(0) && has(1)) {
			t.Errorf("%s: %q, where leasehold would not be found or not be called", reason, f.Repair)
		}
		if slices.Contains(f.Repair, cli.RestartAgents) && !has(3) {
			t.Errorf("%s: %q, where no agent runs", reason, f.Repair)
		}
		all = append(all, f)
	}
	return all
}

// nodeFindings returns findings of all other checks of a node.
func nodeFindings(t *testing.T) []cli.Finding {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must.Succeed(t, errors.Join(os.Mkdir(path("conf"), 0o755), os.WriteFile(path("conf/10-net.conflist"),
		[]byte(`{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"leasehold"}}]}`), 0o600),
		os.WriteFile(path("leasehold"), built.Plugin(t), 0o755)))
	now := lease.Instant{Wall: time.Now(), BootID: "b"}
	subnet, err := pool.NewRange(netip.MustParsePrefix("10.0.0.0/24"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	must.Succeed(t, err)
	set, err := pool.NewSet(subnet)
	must.Succeed(t, err)
	var state content
	for i, network := range []string{"net", "bound", "held"} {
		l := lease.Lease{Pool: lease.Pool{DataDir: path("data"), Network: network}, State: lease.Bound,
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Holder: lease.Holder{ContainerID: network}}
		if network == "held" {
			l.State, l.Holder, l.Window = lease.Held, lease.Holder{}, lease.Forever
		}
		state.leases = append(state.leases, l)
		state.usage = append(state.usage, store.Usage{Pool: l.Pool, Ranges: set})
	}
	n := &nodeDoctor{app: &app{App: cli.New(cli.Env{Clock: func() lease.Instant { return now }}),
		Dirs: store.Dirs{State: path("state"), Run: path("run")}, Host: host.New(newProc(t), "")},
		Report:  cli.NewReport(),
		Runtime: cniconf.Runtime{BinDirs: []string{dir}}, conf: cniconf.Load(path("conf"), cniconf.Rules{})}
	n.networks = cniconf.Check(n.conf, n.BinDirs)
	n.checkConfiguration(t.Context())
	n.state = state // with leases the view would have to be proven before
	n.checkRanges(t.Context())
	n.checkAddresses(t.Context())
	must.Succeed(t, os.WriteFile(path("conf/10-net.conflist"), []byte(`{"name":"net","plugins":[{"type":"bridge",
		"ipam":{"type":"leasehold","subnet":"10.0.0.0/30","dataDir":"`+path("data")+`"}}]}`), 0o600))
	n.networks = cniconf.Check(cniconf.Load(path("conf"), cniconf.Rules{}), n.BinDirs)
	for _, l := range []lease.Lease{
		{State: lease.Bound, Holder: lease.Holder{ContainerID: "c"}},
		{State: lease.Bound, Holder: lease.Holder{Netns: lease.Netns{Ino: 1}}},
		{State: lease.Held, IsHold: true, Hold: lease.Forever},
	} {
		l.Pool, l.Address = state.leases[0].Pool, netip.MustParseAddr("10.0.0.2")
		n.state = content{leases: []lease.Lease{l}}
		n.checkAddresses(t.Context())
	}
	must.Succeed(t, errors.Join(os.WriteFile(path("bridge"), []byte("x"), 0o755),
		os.WriteFile(path("data"), nil, 0o600)))
	n.networks = cniconf.Check(cniconf.Load(path("conf"), cniconf.Rules{}), n.BinDirs)
	n.checkAddresses(t.Context())
	for _, n.state = range []content{{err: store.ErrNewer}, {err: store.ErrLost}, {lost: "it was removed"},
		{wrong: []string{"index"}}} {
		n.checkStore(t.Context())
	}
	for _, access := range []error{syscall.EROFS, syscall.EACCES, nil} {
		for _, of := range []string{"state", "run"} {
			n.checkDirectory(path(of), dir, access, unix.Statfs_t{Bsize: 4096})
		}
	}
	check.Empty(t, n.Unchecked)
	return n.Findings
}
