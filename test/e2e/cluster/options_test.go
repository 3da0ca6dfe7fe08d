package cluster

import (
	"strings"
	"testing"
)

func TestOptionsFromEnv(t *testing.T) {
	tests := []struct {
		env  string
		want Options
		err  string
	}{
		{"", Options{Nodes: 3, CNI: "flannel", IPAM: "leasehold"}, ""},
		{"NODES=1 IPAM=host-local", Options{Nodes: 1, CNI: "flannel", IPAM: "host-local"}, ""},
		{"CNI=bridge DUALSTACK=1", Options{Nodes: 3, CNI: "bridge", IPAM: "leasehold", DualStack: true}, ""},
		{"CNI=ptp CONTAINERD=2.4 DUALSTACK=0", Options{Nodes: 3, CNI: "ptp", IPAM: "leasehold", Containerd: "2.4"}, ""},
		{"KUBERNETES=1.30", Options{Nodes: 3, Kubernetes: "1.30", CNI: "flannel", IPAM: "leasehold"}, ""},
		{"KUBERNETES=1.29", Options{}, "KUBERNETES=1.29: want 1.30 or 1.36 or 1.37"},
		{"DUALSTACK=1", Options{}, "CNI=bridge"},
		{"DUALSTACK=yes", Options{}, "DUALSTACK=yes"},
		{"NODES=0", Options{}, "NODES=0"},
		{"NODES=three", Options{}, "NODES=three"},
		{"CNI=calico", Options{}, "flannel or bridge or ptp"},
		{"CONTAINERD=1.7", Options{}, "1.6 or 2.4"},
		{"IPAM=dhcp", Options{}, "leasehold or host-local"},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			for _, name := range []string{"NODES", "CONTAINERD", "CNI", "IPAM", "DUALSTACK",
				"KUBERNETES"} {
				t.Setenv(name, "")
			}
			for _, pair := range strings.Fields(tt.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			got, err := OptionsFromEnv()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestContainerdOf(t *testing.T) {
	tests := []struct {
		o    Options
		want string
	}{
		{Options{Nodes: 3}, "1.6 1.6 2.4"},
		{Options{Nodes: 2}, "1.6 1.6"},
		{Options{Nodes: 3, Containerd: "1.6"}, "1.6 1.6 1.6"},
		{Options{Nodes: 1, Containerd: "2.4"}, "2.4"},
	}
	for _, tt := range tests {
		var got []string
		for i := range tt.o.Nodes {
			got = append(got, tt.o.ContainerdOf(i))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %v, want %s", tt.o, got, tt.want)
		}
	}
}

func TestDirRejectsHiddenDirectories(t *testing.T) {
	for _, dir := range []string{"/var/lib/x", "/opt/x", "/run/x", "/etc/x", "/tmp/" + strings.Repeat("x", 80)} {
		t.Setenv("BED", dir)
		if got, err := Dir("/src"); err == nil {
			t.Errorf("BED=%s: %s, want an error", dir, got)
		}
	}
}

func TestClustersOfTwoDirectoriesDiffer(t *testing.T) {
	o := Options{Nodes: 3}
	one, two := New("/src", "/tmp/one", o), New("/src", "/tmp/two", o)
	if one.bridge() == two.bridge() || one.controlAddr() == two.controlAddr() || one.PodSubnet(0) == two.PodSubnet(0) {
		t.Errorf("%s %v and %s %v", one.bridge(), one.controlAddr(), two.bridge(), two.controlAddr())
	}
	if port := one.port("node50"); len(port) > 15 {
		t.Errorf("%s is too long for the name of a link", port)
	}
}
