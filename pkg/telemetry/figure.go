package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Gauge is a metric that is read when somebody asks for it.
func Gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

// Flag is a Gauge that is 1 or 0.
func Flag(name, help string, read func() bool) prometheus.Collector {
	return Gauge(name, help, func() float64 {
		if read() {
			return 1
		}
		return 0
	})
}

// Count is a metric that only grows, and is read when somebody asks for it.
func Count(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read)
}

// Counter counts, by the labels.
func Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Durations are in seconds, by the labels.
func Durations(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: spans}, labels)
}

// spans are from half a millisecond, in which a fast disk commits, to a minute, after which everything has given up.
var spans = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Collectors are one.
type Collectors []prometheus.Collector

// Describe is for a registry.
func (c Collectors) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range c {
		x.Describe(ch)
	}
}

// Collect is for a registry.
func (c Collectors) Collect(ch chan<- prometheus.Metric) {
	for _, x := range c {
		x.Collect(ch)
	}
}

// Gauges are read when somebody asks for them, all at once, by the value of one label.
func Gauges(name, help, label string, read func() map[string]float64) prometheus.Collector {
	return gauges{desc: prometheus.NewDesc(name, help, []string{label}, nil), read: read}
}

type gauges struct {
	desc *prometheus.Desc
	read func() map[string]float64
}

// Describe is for a registry.
func (g gauges) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect is for a registry.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	for value, n := range g.read() {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, n, value)
	}
}
