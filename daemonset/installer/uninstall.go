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
	// callsEnd is how long uninstall waits for calls of the plugin, none of which takes longer than
	// ten seconds.
	callsEnd = 15 * time.Second
	// holdsEnd is how long it waits for containers that have a held address.
	holdsEnd = 30 * time.Second
)

// uninstaller removes leasehold from a node on which no agent runs any more.
type uninstaller struct {
	bin      bin
	confDirs []string // the runtime's directories of configurations
	// replays are the directories in which flannel and libcni keep the configuration of an ADD for
	// the DEL.
	replays []string
	proc    string // /proc
	node    env.Node
	service *maintain.Service
	log     *slog.Logger
}

// run removes leasehold from the node, so that host-local can serve the next call: first it makes
// sure that nothing names or runs it any more, and that host-local is in its place; then it ends
// all holds, brings host-local's files in step with the store for the last time, and removes the
// store. It can be repeated after an error. Each step depends on all before it, so they stand in
// one function in their order.
func (u uninstaller) run(ctx context.Context) error {
	if err := u.configured(); err != nil {
		return err
	}
	if running, err := u.running("leasehold-agent"); err != nil || running != 0 {
		return errors.Join(err,
			fmt.Errorf("leasehold-agent (process %d) still runs; delete its DaemonSet first", running))
	}
	// Before host-local serves a call, its files must not lack an address that is in use.
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
	// host-local may process DELs meanwhile, from which further holds come.
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

// configured returns an error if a configuration that the runtime loads names leasehold.
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

// running returns the id of a process whose program has one of the names, 0 if there is none.
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
			continue // it has ended, or is a kernel thread
		}
		name := filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
		if slices.Contains(names, name) && (name == "leasehold-agent" || u.isOurs(p.Name())) {
			return pid, nil
		}
	}
	return 0, nil
}

// isOurs reports whether a process runs leasehold's plugin. A process that has ended does not.
func (u uninstaller) isOurs(pid string) bool {
	f, err := os.Open(filepath.Join(u.proc, pid, "exe"))
	if err != nil {
		return false
	}
	defer f.Close()
	ours, err := cniconf.IsLeasehold(f)
	return ours || err != nil
}

// waitForCalls waits until the last call of the plugin has ended.
func (u uninstaller) waitForCalls(ctx context.Context) error {
	return retry(ctx, callsEnd, func() error {
		pid, err := u.running(leasehold, hostLocal)
		if err == nil && pid != 0 {
			err = fmt.Errorf("a call of the plugin (process %d) has not ended", pid)
		}
		return err
	})
}

// export brings host-local's files in step with the store.
func (u uninstaller) export(ctx context.Context) error {
	if _, err := os.Stat(u.node.Dirs.State); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := u.service.Export(ctx, func(lease.Pool) bool { return true })
	return err
}

// endHolds releases the leases of dead sandboxes and all held addresses. It returns an error for an
// address that its last container still has.
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

// blocked returns an error if host-local's files of the pools hold an address.
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

// removePlugin removes the plugin's own binary. Where a DEL would replay a configuration that names
// it, host-local takes that name, because the pod could not end without it.
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
		return errors.Join(os.Remove(path), syncDir(string(u.bin)))
	}
	u.log.Warn("host-local gets the name leasehold as well, for pods that were started with it; "+
		"uninstall again when they have ended", "because", named)
	tmp := u.bin.path(unfinished + leasehold)
	if err := os.Symlink(hostLocal, tmp); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Rename(tmp, path), syncDir(string(u.bin)))
}

// replayed returns a file with the configuration of an ADD that names leasehold, "" if there is
// none.
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

// namesLeasehold reports whether a configuration has an entry of leasehold's type, also in the
// encoded configuration of one of libcni's results.
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

// retry calls f until it succeeds. After the limit it returns the last error.
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
