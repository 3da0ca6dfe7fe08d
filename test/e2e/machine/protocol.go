// Package machine implements a machine of the test cluster: a process that is pid 1 of its own
// mount, PID, network and UTS namespaces, and that starts and stops services there on request.
//
// Killing pid 1 is like a power failure: the kernel kills all processes of the machine, which
// removes its mounts and its network. Files on its disk (Config.Disk) exist at the next start,
// those in memory do not.
package machine

import "time"

// Config is the configuration of a machine.
type Config struct {
	Name string
	// Disk is the directory of what survives a reboot: the machine's /etc (an overlay over the
	// host's), /opt, /var/lib and /var/log.
	Disk string
	// BootID is the file that is mounted as the kernel's boot id.
	BootID string
	// Cgroup is the root of the machine's cgroups.
	Cgroup string
	// Socket is the path of the socket for requests.
	Socket string
}

// Request is a request to a machine. Exactly one field is set.
type Request struct {
	Start  *Start  `json:",omitempty"`
	Signal *Signal `json:",omitempty"`
	Exec   *Exec   `json:",omitempty"`
	List   bool    `json:",omitempty"`
}

// Start starts a service. Its output is appended to Log.
type Start struct {
	Name string
	Argv []string
	Env  []string
	Log  string
	// Restart starts the service again, after a second, if it exits without a Signal.
	Restart bool
}

// Signal sends a signal to a service, and waits until it has ended, at most for Wait. It does
// nothing if the service does not run.
type Signal struct {
	Name   string
	Number int
	Wait   time.Duration
}

// Exec runs a command, and waits until it has ended.
type Exec struct {
	Argv  []string
	Env   []string
	Stdin []byte
}

// Reply is the reply to a Request. Error is empty if it succeeded.
type Reply struct {
	Error    string
	Services map[string]int // running services: name -> pid in the machine
	Restarts map[string]int // name -> number of restarts of a service that exited by itself
	Exit     int
	Stdout   []byte
	Stderr   []byte
}
