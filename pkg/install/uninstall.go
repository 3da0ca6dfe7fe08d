package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// callsEnd is how long uninstall waits for running calls of the plugin to end. A call takes at
	// most ten seconds.
	callsEnd = 15 * time.Second
	// holdsEnd is how long uninstall waits for containers that still use a held address to end.
	holdsEnd = 30 * time.Second
)

// Uninstaller removes leasehold from a node on which the agent no longer runs.
type Uninstaller struct {
	Dir     Dir
	ConfDir string // the runtime's directory of CNI configurations
	// Forwarder is the program leasectl, which is the forwarder under the name leasehold.
	Forwarder []byte
	Service   *maintain.Service
	Host      *host.Host
	Log       *slog.Logger
}

// Plan is what Run does on a node.
type Plan struct {
	Held  int      `json:"held"`  // addresses that are kept for pods that are away, and are lost
	Steps []string `json:"steps"` // what becomes of what is on the node, a sentence each

	undos    []cniconf.Change
	dataDirs []string // in which a lost store may have had pools
}

// Plan returns what Run will do, or all reasons for which leasehold cannot be removed. It changes
// nothing.
func (u Uninstaller) Plan(ctx context.Context) (p Plan, err error) {
	conf := cniconf.Load(u.ConfDir, cniconf.Rules{MaxFiles: -1, SkipInvalid: true})
	undos, err := conf.Undos()
	now, was, e := u.Dir.restorable()
	err = errors.Join(err, e)
	stored, unread := replayed()
	naming := stored
	if len(undos) > 0 {
		naming = []string{undos[0].Path}
	}
	if e == nil && !now.CanRun && !was.CanRun && len(naming) > 0 {
		err = errors.Join(err, fmt.Errorf("%s names leasehold, and there is no host-local in %s to serve it; "+
			"install host-local (containernetworking/plugins) there", naming[0], u.Dir))
	}
	survey, e := u.Service.Survey(ctx)
	isLost := errors.Is(e, store.ErrLost) // it is rebuilt when it is exported
	if !isLost {
		err = errors.Join(err, e, survey.Unsafe)
	}
	if err = errors.Join(err, unread); err != nil {
		return Plan{}, err
	}
	p.undos, p.dataDirs = undos, []string{policy.DefaultDataDir}
	for _, s := range cniconf.Check(conf, nil) {
		if dir := s.Pool.DataDir; dir != "" && !slices.Contains(p.dataDirs, dir) {
			p.dataDirs = append(p.dataDirs, dir)
		}
	}
	p.count(survey.Leases, isLost)
	if now.Ours || was.exists {
		p.add("%s is the host-local that was there before", u.Dir.path(hostLocal))
	}
	for _, c := range undos {
		p.add("%s names host-local", c.Path)
	}
	dirs := u.Service.Node.Store.Dirs()
	p.add("%s and %s are removed", dirs.State, dirs.Run)
	switch path := u.Dir.path(leasehold); {
	case !exists(path):
	case len(stored) == 0:
		p.add("%s is removed", path)
	default:
		p.add("%s stays, for DELs of containers that were started with leasehold, at least till these have ended", path)
	}
	if exists(usualLeasectl) {
		p.add("%s stays; remove it by hand", usualLeasectl)
	}
	return p, nil
}

// usualLeasectl is where a user puts leasectl (README.md).
const usualLeasectl = "/usr/local/bin/leasectl"

func (p *Plan) add(format string, args ...any) {
	p.Steps = append(p.Steps, fmt.Sprintf(format, args...))
}

// count adds what becomes of the addresses. isLost reports whether the leases are not known.
func (p *Plan) count(leases []lease.Lease, isLost bool) {
	if isLost {
		p.add("the store is lost: held addresses that no file of host-local has are lost too")
	}
	stay, unnamed := 0, []string{}
	for _, l := range leases {
		switch {
		case l.State == lease.Bound && seenOnly(l):
			unnamed = append(unnamed, l.Address.String())
		case l.State == lease.Bound:
			stay++
		case l.IsHold:
			p.Held++
		}
	}
	p.add("addresses in use: %d; they stay with their containers", stay)
	p.add("addresses held for pods that are away: %d; they are released, and other pods may get them", p.Held)
	if len(unnamed) > 0 {
		p.add("addresses on interfaces of unknown containers: %s; host-local may give them to pods",
			strings.Join(unnamed, ", "))
	}
}

// seenOnly reports whether a lease was imported from an interface alone, so that no container is
// known whose DEL could release it.
func seenOnly(l lease.Lease) bool {
	return l.State == lease.Bound && l.Holder.ContainerID == "" && l.Holder.Netns.Ino != 0
}

// Run removes leasehold from the node, so that host-local can serve the next call of the runtime.
// It restores host-local, names it in the configurations that name leasehold, and waits for running
// calls of the plugin. At last it ends all holds, updates host-local's files from the store, and
// removes the store and the plugin. It returns what a person should know: what is left.
//
// Run can be repeated after an error. The steps are in one function because each depends on all
// earlier steps.
func (u Uninstaller) Run(ctx context.Context, plan Plan) (text string, err error) {
	isAgent := func(name, _ string) bool { return name == "leasehold-agent" }
	if running, err := u.Host.Running(isAgent); err != nil || running != 0 {
		return "", errors.Join(err,
			fmt.Errorf("leasehold-agent (process %d) still runs; delete its DaemonSet first", running))
	}
	// When host-local serves its first call, its files must contain all addresses that are in use.
	// What is still missing after callsEnd was not removed by a DEL.
	_ = Retry(ctx, callsEnd, func() error {
		survey, _ := u.Service.Survey(ctx)
		return stillExist(survey)
	})
	if _, err := u.Service.Export(ctx, plan.dataDirs...); err != nil {
		return "", err
	}
	if err := u.switchToHostLocal(plan.undos); err != nil {
		return "", err
	}
	if err := u.waitForCalls(ctx); err != nil {
		return "", err
	}
	// host-local may process DELs meanwhile. Each may become a hold in the store at the next step.
	var pools []lease.Pool
	err = Retry(ctx, holdsEnd, func() (err error) {
		if err := u.endHolds(ctx); err != nil {
			return err
		}
		if pools, err = u.Service.Export(ctx); err != nil {
			return err
		}
		return blocked(pools)
	})
	if err != nil {
		return "", err
	}
	if err := u.removeUnnamed(ctx); err != nil {
		return "", err
	}
	for _, p := range pools {
		if err := hostlocal.Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	for _, dir := range []string{u.Service.Node.Store.Dirs().State, u.Service.Node.Store.Dirs().Run} {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return u.removeName()
}

// switchToHostLocal has all later calls of the runtime run host-local: under its own name, and
// through the forwarder under the name leasehold. The runtime calls that for a moment, until it has
// read the configurations again, and for the DEL of pods whose stored configuration names it.
func (u Uninstaller) switchToHostLocal(undos []cniconf.Change) error {
	done, err := u.Dir.restore()
	if err != nil {
		return err
	}
	u.Log.Info("host-local is in its place", "directory", string(u.Dir), "changed", done)
	for _, c := range undos {
		if err := c.Write(); err != nil {
			return err
		}
		u.Log.Info("the configuration names host-local", "file", c.Path)
	}
	if exists(u.Dir.path(leasehold)) {
		_, err = u.Dir.put(u.Forwarder, leasehold)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// waitForCalls waits until no process runs leasehold's plugin. It returns an error after callsEnd.
func (u Uninstaller) waitForCalls(ctx context.Context) error {
	return Retry(ctx, callsEnd, func() error {
		pid, err := u.Host.Running(func(name, path string) bool {
			if name != leasehold && name != hostLocal {
				return false
			}
			p, err := look(path) // nothing if the process has ended
			return p.Ours || err != nil
		})
		if err == nil && pid != 0 {
			err = fmt.Errorf("a call of the plugin (process %d) has not ended", pid)
		}
		return err
	})
}

// stillExist returns an error if the file of a container that still exists is missing. While
// host-local processes a DEL, and shortly after it, that is so. If the file were written again
// then, nothing would prove that DEL.
func stillExist(survey maintain.Survey) (err error) {
	for _, l := range survey.WithoutFile {
		if survey.Life[l.Holder] == lease.Alive {
			err = errors.Join(err, fmt.Errorf("container %s of %s still exists, and host-local has processed its DEL",
				l.Holder.ContainerID, l.Address))
		}
	}
	return err
}

// endHolds releases the leases of sandboxes that are dead, and all held addresses. It returns an
// error for each held address that the last container still uses.
func (u Uninstaller) endHolds(ctx context.Context) error {
	survey, err := u.Service.Survey(ctx)
	if err = errors.Join(err, survey.Unsafe, stillExist(survey)); err != nil {
		return err
	}
	if _, err := u.Service.Act(ctx, maintain.Plan(survey)); err != nil {
		return err
	}
	held := func(l lease.Lease) bool { return l.State == lease.Held }
	all, err := u.Service.Revoke(ctx, held, false, "leasehold is removed from the node")
	for _, r := range all {
		err = errors.Join(err, r.Err)
	}
	return err
}

// removeUnnamed removes host-local's files of addresses that are known from an interface alone.
// They name no container, so that no DEL would remove them.
func (u Uninstaller) removeUnnamed(ctx context.Context) error {
	survey, err := u.Service.Survey(ctx)
	for _, l := range survey.Leases {
		if err != nil || !seenOnly(l) {
			continue
		}
		var dir *hostlocal.Dir
		if dir, err = hostlocal.Open(ctx, l.Pool); err != nil {
			break
		}
		if f, _, e := dir.Read(l.Address); e == nil && f.Content == "" {
			err = dir.Remove(l.Address)
		}
		dir.Close()
	}
	return err
}

// blocked returns an error if one of host-local's files in the pools marks an address as held.
// host-local would never release such an address.
func blocked(pools []lease.Pool) (err error) {
	for _, p := range pools {
		dir, e := hostlocal.OpenUnlocked(p)
		if dir == nil {
			err = errors.Join(err, e)
			continue
		}
		addrs, e := dir.Addresses()
		err = errors.Join(err, e)
		for _, a := range addrs {
			if f, _, e := dir.Read(a); e != nil || hostlocal.IsHold(f.Content) {
				err = errors.Join(err, fmt.Errorf("%s still holds its address", dir.FilePath(a)), e)
			}
		}
	}
	return err
}

// removeName removes the name leasehold from the directory of plugins. If stored configurations of
// ADDs name leasehold, the DELs for those ADDs will run the program of that name, and the pods
// could not be deleted without it. Then the forwarder stays, and removeName returns why.
func (u Uninstaller) removeName() (left string, err error) {
	path := u.Dir.path(leasehold)
	if !exists(path) {
		return "", nil
	}
	stored, err := replayed()
	switch {
	case err != nil:
		return "", err
	case len(stored) > 0:
		return staying(path, stored), nil
	}
	// The forwarder may have removed itself.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return "", files.SyncDir(string(u.Dir))
}

// staying says why the forwarder stays at a path, and until when.
func staying(path string, stored []string) string {
	paths := strings.Join(stored[:min(len(stored), 3)], ", ")
	if n := len(stored) - 3; n > 0 {
		paths += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s stays, and runs host-local for DELs of containers that were started with leasehold: their "+
		"configuration is in %s. It removes itself after the last DEL that calls it. containerd calls it only for "+
		"configurations of flannel and Multus, and no runtime for a container that it does not know (crictl pods "+
		"-q --no-trunc): remove the files of such containers, and call leasectl uninstall again when the others "+
		"have ended",
		path, paths)
}

// Retry calls f once per second until f succeeds. It returns the last error when the limit is over
// or ctx is done.
func Retry(ctx context.Context, limit time.Duration, f func() error) error {
	for end := time.Now().Add(limit); ; {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}
