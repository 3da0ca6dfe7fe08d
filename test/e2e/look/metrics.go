package look

import (
	"fmt"
	"io"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the metrics of a program at one moment, by name.
type Metrics map[string]*dto.MetricFamily

// ReadMetrics reads the Prometheus text format.
func ReadMetrics(r io.Reader) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	return families, err
}

// Has tells whether a metric is there at all: one that is missing has the sum 0, too.
func (m Metrics) Has(name string) bool { return m[name] != nil }

// Sum adds up the metric's values over all label sets that have these labels, each written as "name=value". Of a histogram
// or a summary it takes the number of observations.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, metric := range m[name].GetMetric() {
		if carries(metric, labels) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue() +
				float64(metric.GetHistogram().GetSampleCount()) + float64(metric.GetSummary().GetSampleCount())
		}
	}
	return sum
}

// String lists the project's own metrics, for people.
func (m Metrics) String() string {
	var out strings.Builder
	for name, family := range m {
		if strings.HasPrefix(name, "leasehold_") {
			if _, err := expfmt.MetricFamilyToText(&out, family); err != nil {
				fmt.Fprintf(&out, "%s: %v\n", name, err)
			}
		}
	}
	return out.String()
}

func carries(metric *dto.Metric, labels []string) bool {
	has := map[string]bool{}
	for _, l := range metric.GetLabel() {
		has[l.GetName()+"="+l.GetValue()] = true
	}
	for _, l := range labels {
		if !has[l] {
			return false
		}
	}
	return true
}
