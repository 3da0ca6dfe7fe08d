package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// callsEnd is how long uninstall waits for running calls of the plugin to end. A call takes at
	// most ten seconds.
	callsEnd = 15 * time.Second
	// holdsEnd is how long uninstall waits for containers that still use a held address to end.
	holdsEnd = 30 * time.Second
)

// uninstaller removes leasehold from a node on which the agent no longer runs.
type uninstaller struct {
	bin      bin
	confDirs []string // the directories of CNI configurations of the runtime
	// replays are the directories in which flannel and libcni store the configuration of each ADD.
	// They use the stored configuration for the DEL.
	replays []string
	proc    string // /proc
	node    env.Node
	service *maintain.Service
	log     *slog.Logger
}

// run removes leasehold from the node, so that host-local can serve the next call of the runtime.
// It checks that no configuration names leasehold and that no agent runs. It restores host-local
// and waits for running calls of the plugin. Then it ends all holds, updates host-local's files
// from the store for the last time, and removes the store and the plugin.
//
// run can be repeated after an error. The steps are in one function because each depends on all
// earlier steps.
func (u uninstaller) run(ctx context.Context) error {
	if err := u.configured(); err != nil {
		return err
	}
	if running, err := u.running("leasehold-agent"); err != nil || running != 0 {
		return errors.Join(err,
			fmt.Errorf("leasehold-agent (process %d) still runs; delete its DaemonSet first", running))
	}
	// When host-local serves its first call, its files must contain all addresses that are in use.
	if err := u.export(ctx); err != nil {
		return err
	}
	done, err := u.bin.restore()
	if err != nil {
		return err
	}
	u.log.Info("host-local is in its place", "directory", string(u.bin), "changed", done)
	if err := u.waitForCalls(ctx); err != nil {
		return err
	}
	pools, err := u.pools(ctx)
	if err != nil {
		return err
	}
	// host-local may process DELs meanwhile. A DEL that host-local has processed may become a hold
	// in the store at the next step, so the steps are repeated.
	err = retry(ctx, holdsEnd, func() error {
		for _, step := range []func(context.Context) error{u.export, u.endHolds} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return blocked(pools)
	})
	if err != nil {
		return err
	}
	for _, p := range pools {
		if err := hostlocal.Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range []string{u.node.Dirs.State, u.node.Dirs.Run} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return u.removePlugin()
}

// configured returns an error if a configuration in the runtime's directories names leasehold, or
// if it could not be read.
func (u uninstaller) configured() error {
	for _, dir := range u.confDirs {
		conf := cniconf.Load(dir, cniconf.Rules{MaxFiles: -1, SkipInvalid: true})
		if conf.Unread != nil {
			return conf.Unread
		}
		for _, f := range conf.Files {
			if f.NamesLeasehold() {
				return fmt.Errorf("%s still names leasehold; put host-local back into it first", f.Path)
			}
		}
	}
	return nil
}

// running returns the ID of a process that runs a program with one of the file names, 0 if there is
// none. A process with another name than leasehold-agent counts only if it runs leasehold's plugin.
func (u uninstaller) running(names ...string) (pid int, err error) {
	processes, err := os.ReadDir(u.proc)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if _, err := fmt.Sscanf(p.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Readlink(filepath.Join(u.proc, p.Name(), "exe"))
		if err != nil {
			continue // the process has ended, or is a kernel thread
		}
		name := filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
		if slices.Contains(names, name) && (name == "leasehold-agent" || u.isOurs(p.Name())) {
			return pid, nil
		}
	}
	return 0, nil
}

// isOurs reports whether a process runs leasehold's plugin. It also reports true if the binary
// could not be read. It reports false if the process has ended.
func (u uninstaller) isOurs(pid string) bool {
	f, err := os.Open(filepath.Join(u.proc, pid, "exe"))
	if err != nil {
		return false
	}
	defer f.Close()
	ours, err := cniconf.IsLeasehold(f)
	return ours || err != nil
}

// waitForCalls waits until no process runs leasehold's plugin. It returns an error after callsEnd.
func (u uninstaller) waitForCalls(ctx context.Context) error {
	return retry(ctx, callsEnd, func() error {
		pid, err := u.running(leasehold, hostLocal)
		if err == nil && pid != 0 {
			err = fmt.Errorf("a call of the plugin (process %d) has not ended", pid)
		}
		return err
	})
}

// export updates host-local's files from the store. It does nothing if there is no store.
func (u uninstaller) export(ctx context.Context) error {
	if _, err := os.Stat(u.node.Dirs.State); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := u.service.Export(ctx, func(lease.Pool) bool { return true })
	return err
}

// endHolds releases the leases of sandboxes that are dead, and all held addresses. It returns an
// error for each held address that the last container still uses.
func (u uninstaller) endHolds(ctx context.Context) error {
	if _, err := os.Stat(u.node.Dirs.State); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	survey, err := u.service.Survey(ctx)
	if err == nil {
		err = survey.Unsafe
	}
	if err == nil {
		_, err = u.service.Act(ctx, maintain.Plan(survey))
	}
	if err != nil {
		return err
	}
	held := func(l lease.Lease) bool { return l.State == lease.Held }
	all, err := u.service.Revoke(ctx, held, false, "leasehold is removed from the node")
	for _, r := range all {
		err = errors.Join(err, r.Err)
	}
	return err
}

// pools returns the pools of the store.
func (u uninstaller) pools(ctx context.Context) (pools []lease.Pool, err error) {
	err = u.service.Store.View(ctx, func(tx *store.Tx) error {
		pools = tx.Pools()
		return nil
	})
	if store.IsEmpty(err) {
		return nil, nil
	}
	return pools, err
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

// removePlugin removes the plugin's binary with the name leasehold. If the stored configuration of
// an ADD names leasehold, the DEL for that ADD will run the binary of that name, and the pod could
// not be deleted without it. In this case removePlugin replaces the binary with a link to
// host-local, and logs a warning.
func (u uninstaller) removePlugin() error {
	path := u.bin.path(leasehold)
	p, err := look(path)
	if err != nil || !p.exists {
		return err
	}
	named, err := u.replayed()
	if err != nil {
		return err
	}
	if named == "" {
		return errors.Join(os.Remove(path), files.SyncDir(string(u.bin)))
	}
	u.log.Warn("host-local gets the name leasehold as well, for pods that were started with it; "+
		"uninstall again when they have ended", "because", named)
	tmp := u.bin.path(unfinished + leasehold)
	if err := os.Symlink(hostLocal, tmp); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Rename(tmp, path), files.SyncDir(string(u.bin)))
}

// replayed returns the path of a stored configuration that names leasehold, "" if there is none.
func (u uninstaller) replayed() (string, error) {
	for _, dir := range u.replays {
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
			var conf any
			if json.Unmarshal(content, &conf) == nil && namesLeasehold(conf) {
				return path, nil
			}
		}
	}
	return "", nil
}

// namesLeasehold reports whether a decoded JSON document contains an object with the type
// leasehold. It also decodes the base64 text under the key config, in which libcni stores the
// configuration of an ADD.
func namesLeasehold(conf any) bool {
	switch c := conf.(type) {
	case []any:
		return slices.ContainsFunc(c, namesLeasehold)
	case map[string]any:
		for key, value := range c {
			text, _ := value.(string)
			if key == "type" && text == leasehold || namesLeasehold(value) {
				return true
			}
			var inner any
			if encoded, err := base64.StdEncoding.DecodeString(text); key == "config" && err == nil &&
				json.Unmarshal(encoded, &inner) == nil && namesLeasehold(inner) {
				return true
			}
		}
	}
	return false
}

// retry calls f once per second until f succeeds. It returns the last error when the limit is over
// or ctx is done.
func retry(ctx context.Context, limit time.Duration, f func() error) error {
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
