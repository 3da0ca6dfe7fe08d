// Package cluster runs a real Kubernetes cluster on one Linux host: etcd, API server, controller
// manager and scheduler in one container of package machine, and nodes with containerd and kubelet
// in others.
package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Options are the environment variables of `make cluster` and `make e2e`.
type Options struct {
	Nodes      int
	Kubernetes string // minor version, or empty: defaultKubernetes
	Containerd string // "1.6", "2.4", or empty: 1.6 and, on the last of three or more nodes, 2.4
	CRIO       string // path of CRI-O, which nodes have instead of containerd
	CNI        string
	DualStack  bool
	Plain      bool // without leasehold
}

// OptionsFromEnv reads the options from the environment, and rejects invalid ones.
func OptionsFromEnv() (Options, error) {
	o := Options{Nodes: 3, CNI: "flannel"}
	dualStack, runtime := "", ""
	if s := os.Getenv("NODES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 50 {
			return o, fmt.Errorf("NODES=%s: want a number from 1 to 50", s)
		}
		o.Nodes = n
	}
	for _, v := range []struct {
		name   string
		value  *string
		values []string
	}{
		{"KUBERNETES", &o.Kubernetes, []string{"1.30", "1.36", "1.37"}},
		{"CONTAINERD", &o.Containerd, []string{"1.6", "2.4"}},
		{"CNI", &o.CNI, []string{"flannel", "bridge", "ptp", "kube-router", "kind"}},
		{"DUALSTACK", &dualStack, []string{"0", "1"}},
		{"RUNTIME", &runtime, []string{"containerd", "crio"}},
	} {
		s := os.Getenv(v.name)
		if s == "" {
			continue
		}
		if !slices.Contains(v.values, s) {
			return o, fmt.Errorf("%s=%s: want %s", v.name, s, strings.Join(v.values, " or "))
		}
		*v.value = s
	}
	o.DualStack = dualStack == "1"
	if runtime == "crio" {
		path, err := findCRIO(os.Getenv("CRIO"))
		if err != nil {
			return o, err
		}
		o.CRIO = path
	}
	if o.CRIO != "" && o.Containerd != "" {
		return o, fmt.Errorf("CONTAINERD=%s: RUNTIME is crio", o.Containerd)
	}
	if o.DualStack && o.CNI != "bridge" && o.CNI != "ptp" {
		return o, fmt.Errorf("DUALSTACK=1: %s is configured for IPv4 only; use CNI=bridge or CNI=ptp", o.CNI)
	}
	return o, nil
}

// ContainerdOf returns the version of containerd on node i, counted from 0.
func (o Options) ContainerdOf(i int) string {
	switch {
	case o.Containerd != "":
		return o.Containerd
	case o.Nodes >= 3 && i == o.Nodes-1:
		return "2.4"
	default:
		return "1.6"
	}
}

// Dir returns the directory of the cluster: BED, or .bed in the repository.
func Dir(repo string) (string, error) {
	dir := os.Getenv("BED")
	if dir == "" {
		dir = filepath.Join(repo, ".bed")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, hidden := range []string{"/etc", "/opt", "/run", "/var/lib", "/var/log", "/var/run"} {
		if strings.HasPrefix(dir+"/", hidden+"/") || strings.HasPrefix(repo+"/", hidden+"/") {
			return "", fmt.Errorf("machines have their own %s; %s and %s must be outside of it", hidden, repo, dir)
		}
	}
	if len(dir) > 80 {
		return "", fmt.Errorf("%s: too long for the path of a socket; want at most 80 characters", dir)
	}
	return dir, os.MkdirAll(dir, 0o755)
}
