package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
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
	Service *ipam.Service
	Host    *host.Host
	Log     *slog.Logger
}

// replays are the directories in which flannel and libcni store the configuration of each ADD. They
// use the stored configuration for the DEL.
var replays = append([]string{"/var/lib/cni/flannel"}, adopt.DefaultCacheDirs...)

// Run removes leasehold from the node, so that host-local can serve the next call of the runtime.
// First it checks everything that could prevent that, and with dryRun that is all. Then it restores
// host-local, names it in the configurations that name leasehold, and waits for running calls of
// the plugin. At last it ends all holds, updates host-local's files from the store, and removes the
// store and the plugin. It returns what a person should know: what is left.
//
// Run can be repeated after an error. The steps are in one function because each depends on all
// earlier steps.
func (u Uninstaller) Run(ctx context.Context, dryRun bool) (text string, err error) {
	undos, err := u.check(ctx)
	if err != nil || dryRun {
		return "", err
	}
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
	if _, err := u.Service.Export(ctx); err != nil {
		return "", err
	}
	if err := u.switchToHostLocal(undos); err != nil {
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

// check returns the changes of the configurations that name leasehold, or all reasons for which
// leasehold cannot be removed. It changes nothing.
func (u Uninstaller) check(ctx context.Context) (undos []cniconf.Undo, err error) {
	undos, err = cniconf.Undos(u.ConfDir)
	now, was, e := u.Dir.restorable()
	err = errors.Join(err, e)
	if e == nil && !now.usable && !was.usable && len(undos) > 0 {
		err = errors.Join(err, fmt.Errorf("%s names leasehold, and there is no host-local in %s to name instead; "+
			"install host-local (containernetworking/plugins) there", undos[0].Path, u.Dir))
	}
	// A lost store is rebuilt when it is exported.
	if survey, e := u.Service.Survey(ctx); !errors.Is(e, store.ErrLost) {
		err = errors.Join(err, e, survey.Unsafe)
	}
	return undos, err
}

// switchToHostLocal has all later calls of the runtime run host-local: under its own name, and
// under the name leasehold. The runtime calls that for a moment, until it has read the
// configurations again, and for the DEL of pods whose stored configuration names it.
func (u Uninstaller) switchToHostLocal(undos []cniconf.Undo) error {
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
	named, err := look(u.Dir.path(leasehold))
	if err != nil || !named.exists {
		return err
	}
	if now, err := look(u.Dir.path(hostLocal)); err != nil || !now.usable {
		return err // nothing calls leasehold: see check
	}
	tmp := u.Dir.path(unfinished + leasehold)
	if err := os.Symlink(hostLocal, tmp); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Rename(tmp, u.Dir.path(leasehold)), files.SyncDir(string(u.Dir)))
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
			return p.ours || err != nil
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
func stillExist(survey ipam.Survey) (err error) {
	for _, l := range survey.Unmirrored {
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
	if _, err := u.Service.Act(ctx, ipam.Plan(survey)); err != nil {
		return err
	}
	held := func(l lease.Lease) bool { return l.State == lease.Held }
	all, err := u.Service.Revoke(ctx, held, false, "leasehold is removed from the node")
	for _, r := range all {
		err = errors.Join(err, r.Err)
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

// removeName removes the name leasehold from the directory of plugins. If the stored configuration
// of an ADD names leasehold, the DEL for that ADD will run the program of that name, and the pod
// could not be deleted without it. Then the link to host-local stays, and removeName returns why.
func (u Uninstaller) removeName() (left string, err error) {
	path := u.Dir.path(leasehold)
	p, err := look(path)
	if err != nil || !p.exists {
		return "", err
	}
	named, err := u.replayed()
	if err != nil {
		return "", err
	}
	if named == "" {
		return "", errors.Join(os.Remove(path), files.SyncDir(string(u.Dir)))
	}
	left = fmt.Sprintf("%s is a link to host-local now, for the DEL of pods that were started with leasehold, "+
		"such as that of %s; remove it when these have ended", path, named)
	u.Log.Warn(left)
	return left, nil
}

// typeLeasehold matches a plugin of the type leasehold in a configuration.
var typeLeasehold = regexp.MustCompile(`"type"\s*:\s*"leasehold"`)

// replayed returns the path of a stored configuration that names leasehold, "" if there is none.
func (u Uninstaller) replayed() (string, error) {
	for _, dir := range replays {
		names, err := files.List(dir)
		if err != nil && !files.IsMissing(err) {
			return "", err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			content, _, err := files.Read(path)
			if err != nil && !files.IsMissing(err) {
				return "", err
			}
			var cached struct{ Config []byte } // libcni encodes the configuration
			_ = json.Unmarshal(content, &cached)
			if typeLeasehold.Match(content) || typeLeasehold.Match(cached.Config) {
				return path, nil
			}
		}
	}
	return "", nil
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
