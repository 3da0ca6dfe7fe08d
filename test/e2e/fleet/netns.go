package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// A namespace is a network namespace that is kept by an open file instead of a mount, so that it
// does not outlive this program. It has a path, like those of a runtime.
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

// makeNetns creates the namespace on a thread that ends afterwards.
func makeNetns() (file *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that no other goroutine uses the thread
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
