package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

const soakInterval = 30 * time.Second

// A sampler collects samples.
type sampler struct {
	*soakRun
	at  time.Duration      // since the start
	cpu map[string]cpuTime // by node and program
}

// A cpuTime is what a process had used when it was sampled.
type cpuTime struct {
	started float64 // Unix time of the start of the process
	seconds float64 // of CPU time
	at      time.Duration
}

// sample collects samples until ctx is done.
func (s *soakRun) sample(ctx context.Context) {
	m := &sampler{soakRun: s, cpu: map[string]cpuTime{}}
	began := time.Now()
	m.all(ctx)
	every(ctx, soakInterval, func(now time.Time) {
		m.at = now.Sub(began)
		m.all(ctx)
	})
}

func (m *sampler) put(where, series string, value float64) { m.samples.Add(series, where, m.at, value) }

// all samples what can be read now.
func (m *sampler) all(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, soakInterval)
	defer cancel()
	pods, err := m.Client.CoreV1().Pods(cluster.System).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		m.failed("samples of leasehold's pods that failed", err)
		pods = &corev1.PodList{}
	}
	for _, p := range pods.Items {
		if !ready(p) {
			continue
		}
		switch p.Labels["app.kubernetes.io/name"] {
		case cluster.Agent:
			m.failed("samples of agents that failed", m.program(ctx, p, "agent", agentMetrics))
		case cluster.Manager:
			m.failed("samples of managers that failed", m.program(ctx, p, "manager", managerMetrics))
		}
	}
	for _, name := range m.nodes {
		if m.Cluster.PID(name) != 0 {
			m.failed("samples of nodes that failed", m.node(ctx, name))
		}
	}
	m.failed("samples of the API that failed", m.api(ctx))
}

// program samples the metrics of a program.
func (m *sampler) program(ctx context.Context, p corev1.Pod, name, port string) error {
	metrics, err := scrape(ctx, m.Client, p, port)
	if err != nil {
		return err
	}
	where := p.Spec.NodeName
	m.put(where, name+"_rss_bytes", metrics.Sum("process_resident_memory_bytes"))
	m.put(where, name+"_heap_bytes", metrics.Sum("go_memstats_heap_inuse_bytes"))
	m.put(where, name+"_goroutines", metrics.Sum("go_goroutines"))
	m.put(where, name+"_fds", metrics.Sum("process_open_fds"))
	now := cpuTime{metrics.Sum("process_start_time_seconds"), metrics.Sum("process_cpu_seconds_total"), m.at}
	key := where + " " + name
	if last := m.cpu[key]; last.started == now.started && now.at > last.at {
		m.put(where, name+"_cpu_percent", 100*(now.seconds-last.seconds)/(now.at-last.at).Seconds())
	}
	m.cpu[key] = now
	if name == "agent" {
		m.put(where, "bound", metrics.Sum("leasehold_addresses", "state=Bound"))
		m.put(where, "held", metrics.Sum("leasehold_addresses", "state=Held"))
	}
	return nil
}

// node samples the files of a node.
func (m *sampler) node(ctx context.Context, name string) error {
	root := m.Cluster.Root(name)
	var all error
	for series, dir := range map[string]string{"state": "/var/lib/leasehold", "run": "/run/leasehold",
		"hostlocal": "/var/lib/cni/networks"} {
		files, inodes, bytes, err := usage(root + dir)
		all = errors.Join(all, err)
		if err == nil {
			m.put(name, series+"_files", float64(files))
			m.put(name, series+"_inodes", float64(inodes))
			m.put(name, series+"_bytes", float64(bytes))
		}
	}
	if info, err := os.Stat(root + "/var/lib/leasehold/leases.db"); err == nil {
		m.put(name, "store_bytes", float64(info.Size()))
	}
	out, err := m.Cluster.Machine(name).Run(ctx, m.Cluster.Leasectl(), "-o", "json", "history")
	if err != nil {
		return errors.Join(all, err)
	}
	var entries []inspect.Entry
	if err := json.Unmarshal(out, &entries); err != nil {
		return errors.Join(all, err)
	}
	m.put(name, "journal_entries", float64(len(entries)))
	m.put(name, "journal_bytes", float64(len(out)))
	return all
}

// usage counts the files in a directory, the inodes of them and of the directories, and the bytes
// of the files. A directory that is missing has none.
func usage(dir string) (files, inodes int, bytes int64, err error) {
	gone := func(err error) bool { return errors.Is(err, fs.ErrNotExist) } // files go while they are counted
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignore(err, gone)
		}
		info, err := d.Info()
		if err != nil {
			return ignore(err, gone)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			seen[st.Ino] = true
		}
		if !d.IsDir() {
			files++
			bytes += info.Size()
		}
		return nil
	})
	return files, len(seen), bytes, err
}

// api samples the numbers of objects and the size of etcd's database.
func (m *sampler) api(ctx context.Context) error {
	var all error
	for series, resource := range map[string]schema.GroupVersionResource{
		"ipreservations":      inspect.IPReservations,
		"nodeaddresspools":    inspect.NodeAddressPools,
		"persistentpodstates": {Group: "apps.kruise.io", Version: "v1beta1", Resource: "persistentpodstates"},
		"events":              {Version: "v1", Resource: "events"},
		"leases":              {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		"pods":                {Version: "v1", Resource: "pods"},
	} {
		list, err := m.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", series, err))
			continue
		}
		count := int64(len(list.Items))
		if left := list.GetRemainingItemCount(); left != nil {
			count += *left
		}
		m.put("cluster", series, float64(count))
	}
	size, err := m.Cluster.EtcdBytes()
	if err != nil {
		return errors.Join(all, err)
	}
	m.put("cluster", "etcd_bytes", float64(size))
	return all
}
