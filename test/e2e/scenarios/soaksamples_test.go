package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

const soakInterval = 30 * time.Second

// sample collects samples of what can be read, until ctx is done.
func (s *soakRun) sample(ctx context.Context) {
	every(ctx, soakInterval, func(time.Time) {
		ctx, cancel := context.WithTimeout(ctx, soakInterval)
		defer cancel()
		pods, err := s.Client.CoreV1().Pods(cluster.System).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			s.failed("samples of leasehold's pods that failed", err)
			pods = &corev1.PodList{}
		}
		for _, p := range pods.Items {
			switch app := p.Labels["app.kubernetes.io/name"]; {
			case !ready(p):
			case app == cluster.Agent:
				s.failed("samples of agents that failed", s.sampleProgram(ctx, p, "agent", agentMetrics))
			case app == cluster.Manager:
				s.failed("samples of managers that failed", s.sampleProgram(ctx, p, "manager", managerMetrics))
			}
		}
		for _, name := range s.nodes {
			if s.Cluster.PID(name) != 0 {
				s.failed("samples of nodes that failed", s.sampleFiles(name))
			}
		}
		s.failed("samples of the API that failed", s.sampleObjects(ctx))
	})
}

func (s *soakRun) sampleProgram(ctx context.Context, p corev1.Pod, name, port string) error {
	metrics, err := scrape(ctx, s.Client, p, port)
	if err != nil {
		return err
	}
	for series, metric := range map[string]string{"heap_bytes": "go_memstats_heap_inuse_bytes",
		"goroutines": "go_goroutines", "fds": "process_open_fds"} {
		s.samples.Add(name+"_"+series, p.Spec.NodeName, metrics.Sum(metric))
	}
	return nil
}

func (s *soakRun) sampleFiles(node string) error {
	root := s.Cluster.Root(node)
	for series, dir := range map[string]string{"state_files": "/var/lib/leasehold", "run_files": "/run/leasehold",
		"hostlocal_files": "/var/lib/cni/networks"} {
		files := 0
		err := filepath.WalkDir(root+dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files++
			}
			return ignore(err, func(err error) bool { return errors.Is(err, fs.ErrNotExist) }) // files go meanwhile
		})
		if err != nil {
			return err
		}
		s.samples.Add(series, node, float64(files))
	}
	info, err := os.Stat(root + "/var/lib/leasehold/leases.db")
	if err == nil {
		s.samples.Add("store_bytes", node, float64(info.Size()))
	}
	return err
}

func (s *soakRun) sampleObjects(ctx context.Context) error {
	for _, resource := range []schema.GroupVersionResource{v1alpha1.Resource, inspect.NodeAddressPools, podStates,
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, {Version: "v1", Resource: "pods"}} {
		list, err := s.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("%s: %w", resource.Resource, err)
		}
		count := int64(len(list.Items))
		if left := list.GetRemainingItemCount(); left != nil {
			count += *left
		}
		s.samples.Add(resource.Resource, "cluster", float64(count))
	}
	return nil
}
