package cli

import "github.com/leasehold-cni/leasehold/pkg/store"

// The types of this file and Report are what commands print with -o json (docs/json.md). Their
// fields are a stable interface.

// Row is a lease.
type Row struct {
	Network    string  `json:"network"`
	Address    string  `json:"address"`
	Namespace  string  `json:"namespace"`
	Pod        string  `json:"pod"`
	UID        string  `json:"uid"`
	Interface  string  `json:"interface"`
	Container  string  `json:"container"`
	Netns      string  `json:"netns"`
	MAC        string  `json:"mac"`
	State      string  `json:"state"`
	IsHold     bool    `json:"hold"`
	Window     string  `json:"window"`
	BoundAt    *string `json:"boundAt"`
	ReleasedAt *string `json:"releasedAt"`
	Until      *string `json:"until"`
	ID         string  `json:"id"`

	ReserveAs string `json:"reservation"`
}

// Checked is the result of check.
type Checked struct {
	Leases   int      `json:"leases"`
	Problems []string `json:"problems"`
}

// Action is what gc does with a lease.
type Action struct {
	Action string `json:"action"`
	Row
	Reason string `json:"reason"`
	DryRun bool   `json:"dryRun"`
}

// Imported is a network whose leases were imported: the number of its leases before and after it.
type Imported struct {
	Network string `json:"network"`
	Before  int    `json:"before"`
	After   int    `json:"after"`
}

// Candidate is a lease that would be imported.
type Candidate struct {
	Row
	Why string `json:"why"`
}

// Released is a lease as it was before its release. Error is "" if the lease was released.
type Released struct {
	Row
	Error string `json:"error"`
}

// Pool is the usage of a range set. Size and Free are nil if the ranges are not known.
type Pool struct {
	Network  string   `json:"network"`
	DataDir  string   `json:"dataDir"`
	Ranges   []string `json:"ranges"`
	Size     *uint64  `json:"size"`
	Bound    uint64   `json:"bound"`
	Held     uint64   `json:"held"`
	CoolDown uint64   `json:"coolDown"`
	Free     *uint64  `json:"free"`
}

// NodeEntry is a journal entry and its node.
type NodeEntry struct {
	Node string `json:"node"`
	store.Entry
}
