package monitoring

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

// The PodMonitors have only fields that the Prometheus operator knows, and the names that alerts
// expect. The scenario node-pool scrapes their endpoints.
func TestPodMonitors(t *testing.T) {
	text, err := os.ReadFile("../../daemonset/components/pod-monitors/podmonitors.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var monitor monitoring.PodMonitor
		if err := errors.Join(err, strict.UnmarshalStrict(document, &monitor)); err != nil {
			t.Fatal(err)
		}
		names = append(names, monitor.Name)
	}
	if want := []string{"leasehold-agent", "leasehold-manager"}; !slices.Equal(names, want) {
		t.Errorf("PodMonitors %q, want %q", names, want)
	}
}
