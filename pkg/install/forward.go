package install

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/importer"
)

// The forwarder is the program that Uninstaller.Run leaves under the name leasehold, for DELs that
// replay the configuration of their ADD. It runs host-local under host-local's own name, because
// some host-locals act by the name that they are called with (docs/facts.md, "k3s replaces the
// links to its plugins when it is upgraded"), and answers calls of a chained entry of leasehold. It
// removes itself after the last DEL.

// forwarderWaits is how long the forwarder waits after a DEL for the caller to remove the
// configuration that it has replayed. The last DELs of a node may come at the same time, so it
// waits as long again whenever one was removed.
const forwarderWaits = time.Minute

// removeArg is the argument with which the forwarder starts itself to wait.
const removeArg = "remove"

// IsForwarder reports whether a program that is called with these arguments is the forwarder.
func IsForwarder(args []string) bool { return filepath.Base(args[0]) == leasehold }

// Forward is the forwarder: it serves one call of the runtime, and returns the exit code.
func Forward(args []string) int {
	self, err := os.Executable()
	switch {
	case err != nil:
	case len(args) > 1 && args[1] == removeArg:
		err = removeForwarder(self)
	default:
		err = forward(self)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0: // host-local has printed why
		return exit.ExitCode()
	}
	_ = types.NewError(types.ErrTryAgainLater, err.Error(), "leasehold was removed from this node").Print()
	return 1
}

// forward serves a call. self is the path of this program.
func forward(self string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var conf struct {
		Type             string
		IPAM, PrevResult json.RawMessage
	}
	_ = json.Unmarshal(stdin, &conf) // host-local says what is wrong
	verb, isChained := os.Getenv("CNI_COMMAND"), conf.Type == leasehold && isAbsent(conf.IPAM)
	switch {
	case !isChained, verb == "VERSION":
		err = runHostLocal(self, stdin)
	case verb == "ADD" && isAbsent(conf.PrevResult):
		err = errors.New("prevResult is missing, which the entry of leasehold needs")
	case verb == "ADD":
		_, err = os.Stdout.Write(conf.PrevResult)
	}
	if err == nil && verb == "DEL" {
		startRemoval(self, os.Getenv("CNI_CONTAINERID"))
	}
	return err
}

func isAbsent(value json.RawMessage) bool { return value == nil || string(value) == "null" }

// runHostLocal runs the host-local beside this program.
func runHostLocal(self string, stdin []byte) error {
	cmd := exec.Command(filepath.Join(filepath.Dir(self), hostLocal))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		// Not the error itself, whose text a runtime may take for the success of a DEL.
		return fmt.Errorf("%s cannot be run; install host-local (containernetworking/plugins) there", cmd.Path)
	}
	return cmd.Wait()
}

// startRemoval starts a process that removes this program as soon as no stored configuration names
// it. That of the container whose DEL this is still does. If it is not seen, those of others might
// not be seen either, and nothing is removed.
func startRemoval(self, containerID string) {
	seen := func(path string) bool { return strings.Contains(filepath.Base(path), containerID) }
	stored, err := replayed()
	if err == nil && containerID != "" && slices.ContainsFunc(stored, seen) {
		cmd := exec.Command(self, removeArg)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a runtime may kill the group of a call
		_ = cmd.Start()                                      // the DEL itself has succeeded
	}
}

// removeForwarder waits until no stored configuration names leasehold, and then removes this
// program, which is at a path. Otherwise it ends forwarderWaits after the time of the file, which
// it sets whenever one of the configurations is gone. Only one process waits. Others set the time,
// so that it waits as long for their DELs, and end.
func removeForwarder(path string) error {
	self, err := os.Open(path)
	if err != nil {
		return err
	}
	defer self.Close()
	lock := func() error { return syscall.Flock(int(self.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
	touch := func() { _ = os.Chtimes(path, time.Now(), time.Now()) } // where that fails, it cannot be removed either
	isOver := func() bool {
		info, err := self.Stat()
		return err != nil || time.Since(info.ModTime()) >= forwarderWaits
	}
	touch()
	if lock() != nil {
		return nil
	}
	for last := ""; ; {
		time.Sleep(time.Second)
		stored, err := replayed()
		switch text := strings.Join(stored, "\n"); {
		case err == nil && text == "":
			return removeFile(path, self)
		case err == nil && text != last:
			last = text
			touch()
		case isOver():
			_ = syscall.Flock(int(self.Fd()), syscall.LOCK_UN)
			if isOver() || lock() != nil {
				return nil
			}
		}
	}
}

// removeFile removes an open file, unless another one has its name now, because leasehold was
// installed again.
func removeFile(path string, open *os.File) error {
	d := Dir(filepath.Dir(path))
	return d.locked(func() error {
		if !files.IsAt(open, path) {
			return nil
		}
		return errors.Join(os.Remove(path), files.SyncDir(string(d)))
	})
}

// replays are the directories in which flannel, Multus and libcni store the configuration of each
// ADD. flannel, Multus and CRI-O use the stored configuration for the DEL.
var replays = append([]string{"/var/lib/cni/flannel", "/var/lib/cni/multus"}, importer.DefaultCacheDirs...)

// replayed returns the paths of the stored configurations that name leasehold, or cannot be read.
func replayed() (paths []string, err error) {
	for _, dir := range replays {
		names, err := files.List(dir)
		if err != nil && !files.IsMissing(err) {
			return nil, err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			content, _, err := files.Read(path)
			var stored any
			switch {
			case files.IsMissing(err):
			case err != nil, json.Unmarshal(content, &stored) == nil && namesLeasehold(stored):
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

// namesLeasehold reports whether a JSON value has a plugin of the type leasehold, also in a
// configuration that is encoded in a string, as libcni and Multus store them.
func namesLeasehold(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			if member == any(leasehold) && strings.EqualFold(key, "type") || namesLeasehold(member) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, namesLeasehold)
	case string:
		content, err := base64.StdEncoding.DecodeString(value)
		var inner any
		return err == nil && json.Unmarshal(content, &inner) == nil && namesLeasehold(inner)
	}
	return false
}
