// Package machine is one machine of the bed: a process that is pid 1 of its own mount, pid, network and host-name
// namespaces, and that starts and stops services there when it is told to.
//
// Ending pid 1 is pulling the plug: the kernel kills every process of the machine and with them go its mounts and its
// network. What was written to its disk (Config.Disk) is there at the next start, what was in memory is not.
package machine

import "time"

// Config says what a machine is made of.
type Config struct {
	Name string
	// Disk holds what survives a reboot: the machine's own /etc (laid over the host's), /opt, /var/lib and /var/log.
	Disk string
	// BootID is the file that the machine shows as the kernel's boot id.
	BootID string
	// Cgroup is the group that is the root of the machine's own cgroups.
	Cgroup string
	// Socket is where the machine takes requests.
	Socket string
}

// Request asks a machine for one thing; exactly one field is set.
type Request struct {
	Start  *Start  `json:",omitempty"`
	Signal *Signal `json:",omitempty"`
	Exec   *Exec   `json:",omitempty"`
	List   bool    `json:",omitempty"`
}

// Start starts a service, whose output is appended to Log.
type Start struct {
	Name string
	Argv []string
	Env  []string
	Log  string
}

// Signal sends a signal to a service and waits until it has ended, for Wait at most. A service that is not running
// has ended.
type Signal struct {
	Name   string
	Number int
	Wait   time.Duration
}

// Exec runs a command to its end.
type Exec struct {
	Argv  []string
	Env   []string
	Stdin []byte
}

// Reply answers a Request. Error is empty when it was done.
type Reply struct {
	Error    string
	Services map[string]int // name -> pid inside the machine, of what runs
	Exit     int
	Stdout   []byte
	Stderr   []byte
}
