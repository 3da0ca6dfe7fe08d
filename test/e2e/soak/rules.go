package soak

import "time"

const (
	kib = 1 << 10
	mib = 1 << 20
	// events is how long an API server keeps events, and some minutes until etcd is compacted.
	events = 65 * time.Minute
	// journal is the largest number of entries of a journal: store.JournalSize, and what is removed
	// at a time.
	journal = 4096 + 64
	// calls is the size at which the agent truncates the log of the plugin's calls
	// (store.CallLogReader), and what is written until it reads the metrics again.
	calls = 320 * kib
)

// Rules are the rules for the series of a soak, in the order in which they are shown.
var Rules = []Rule{
	{Name: "agent_rss_bytes", Unit: "MiB", Growth: 0.1, Slack: 3 * mib},
	{Name: "agent_heap_bytes", Unit: "MiB", Growth: 0.1, Slack: 2 * mib},
	{Name: "agent_goroutines", Growth: 0.1, Slack: 3},
	{Name: "agent_fds", Growth: 0.1, Slack: 2},
	{Name: "agent_cpu_percent", Unit: "%", Growth: 0.25, Slack: 0.2},
	{Name: "manager_rss_bytes", Unit: "MiB", Growth: 0.1, Slack: 5 * mib},
	{Name: "manager_heap_bytes", Unit: "MiB", Growth: 0.1, Slack: 4 * mib},
	{Name: "manager_goroutines", Growth: 0.1, Slack: 10},
	{Name: "manager_fds", Growth: 0.1, Slack: 3},
	{Name: "manager_cpu_percent", Unit: "%", Growth: 0.25, Slack: 0.2},
	{Name: "bound", Growth: 0.1, Slack: 8},
	{Name: "held", Growth: 0.1, Slack: 8},
	{Name: "store_bytes", Unit: "MiB", Growth: 0.1, Slack: 64 * kib},
	{Name: "journal_entries", Limit: journal},
	{Name: "journal_bytes", Unit: "MiB", Limit: journal * kib},
	{Name: "state_files", Growth: 0.1, Slack: 1},
	{Name: "state_inodes", Growth: 0.1, Slack: 1},
	{Name: "state_bytes", Unit: "MiB", Growth: 0.1, Slack: 64 * kib},
	{Name: "run_files", Growth: 0.1, Slack: 3},
	{Name: "run_inodes", Growth: 0.1, Slack: 3},
	{Name: "run_bytes", Unit: "KiB", Limit: calls},
	{Name: "hostlocal_files", Growth: 0.1, Slack: 8},
	{Name: "hostlocal_inodes", Growth: 0.1, Slack: 8},
	{Name: "hostlocal_bytes", Unit: "KiB", Growth: 0.1, Slack: 4 * kib},
	{Name: "ipreservations", Growth: 0.1, Slack: 5},
	{Name: "nodeaddresspools", Growth: 0, Slack: 0},
	{Name: "persistentpodstates", Growth: 0, Slack: 2},
	{Name: "leases", Growth: 0, Slack: 1},
	{Name: "pods", Growth: 0.1, Slack: 5},
	{Name: "events", Growth: 0.2, Slack: 100, Settles: events},
	{Name: "etcd_bytes", Unit: "MiB", Growth: 0.2, Slack: 2 * mib, Settles: events},
}

// units are the factors of the units in which figures are shown.
var units = map[string]float64{"": 1, "%": 1, "KiB": kib, "MiB": mib}

// shown returns a value in the unit of the rule.
func (r Rule) shown(value float64) float64 { return value / units[r.Unit] }
