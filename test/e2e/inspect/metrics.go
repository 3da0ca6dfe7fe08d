package inspect

import (
	"io"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is one scrape of a program's metrics, by name.
type Metrics map[string]*dto.MetricFamily

// ReadMetrics parses the Prometheus text format.
func ReadMetrics(r io.Reader) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	return families, err
}

// Sum returns the sum of a metric's values over all label sets with the given labels, each as
// "name=value". For a histogram or a summary it sums the numbers of observations.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, metric := range m[name].GetMetric() {
		has := map[string]bool{}
		for _, l := range metric.GetLabel() {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue() +
				float64(metric.GetHistogram().GetSampleCount()) + float64(metric.GetSummary().GetSampleCount())
		}
	}
	return sum
}
