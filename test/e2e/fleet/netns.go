package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// A namespace is a network namespace that nothing but an open file keeps: no mount outlives this program. It has a path of
// its own, as those of a runtime have.
type namespace struct {
	file *os.File
	path string
}

func newNamespace(dir, id string) (*namespace, error) {
	file, err := makeNetns()
	if err != nil {
		return nil, err
	}
	n := &namespace{file, filepath.Join(dir, id)}
	if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), n.path); err != nil {
		file.Close()
		return nil, err
	}
	return n, nil
}

// makeNetns makes the namespace on a thread that ends with it.
func makeNetns() (file *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: nobody else shall run in there
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
	}()
	<-done
	return file, err
}

func (n *namespace) close() {
	os.Remove(n.path)
	n.file.Close()
}
