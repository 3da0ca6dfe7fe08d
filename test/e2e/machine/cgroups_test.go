package machine

import "testing"

func TestKindOf(t *testing.T) {
	tests := []struct{ options, want string }{
		{"rw,memory", "memory"},
		{"rw,cpu,cpuacct", "cpu,cpuacct"},
		{"rw,name=systemd", "name=systemd,none"},
		{"rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd", "name=systemd,none"},
		{"rw,cpuset,clone_children", "cpuset"},
	}
	for _, tt := range tests {
		if got := kindOf(tt.options); got != tt.want {
			t.Errorf("kindOf(%q) = %q, want %q", tt.options, got, tt.want)
		}
	}
}
