package scenarios

import (
	"context"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/history"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// watchSandboxes records whose the sandboxes are that the history is about.
func (s *soakRun) watchSandboxes(ctx context.Context) {
	every(ctx, 3*time.Second, func(time.Time) {
		list, err := s.Client.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		s.failed("lists of pods that failed", err)
		if err != nil {
			return
		}
		windows := map[string]time.Duration{} // by UID
		for _, p := range list.Items {
			windows[string(p.UID)], _ = time.ParseDuration(p.Annotations[Window])
		}
		for _, node := range s.nodes {
			sandboxes, err := inspect.Sandboxes(ctx, s.Cluster.Root(node), s.NS)
			s.failed("lists of sandboxes that failed", err)
			for _, sb := range sandboxes {
				window, known := windows[sb.UID]
				if known && sb.NetNS != "" {
					s.history.Belongs(filepath.Base(sb.NetNS),
						history.Pod{Name: sb.Namespace + "/" + sb.Pod, Node: node, Window: window})
				}
			}
		}
	})
}

// checkHistory writes down what was seen in the network namespaces, and checks it.
func (s *soakRun) checkHistory() {
	spans := s.history.Spans()
	file, err := os.Create(filepath.Join(s.dir, "history.txt"))
	s.Must(err)
	defer file.Close()
	s.Must(history.Write(file, spans))
	s.Step("%d times a sandbox was seen with an address; they are in %s", len(spans), file.Name())
	if len(spans) == 0 {
		s.violated("no sandbox was seen with an address")
	}
	for _, text := range history.Check(spans) {
		s.violated("%s", text)
	}
}
