package commit

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the committer's collectors. One set serves one committer.
type Metrics struct {
	// Batches counts batches taken off the queue, however they ended.
	Batches prometheus.Counter
	// Steps counts steps by outcome: committed, not_committed, unknown.
	Steps *prometheus.CounterVec
	// BatchSize observes steps per batch taken.
	BatchSize prometheus.Histogram
	// Duration observes seconds from taking a batch to its last outcome.
	Duration prometheus.Histogram
	// Halvings counts batches cut in two to find a step that the database refuses. It must stay 0: all that a client
	// can cause is decided by validation or ON CONFLICT.
	Halvings prometheus.Counter
	// Retries counts further attempts at batches that were certainly not committed, by reason: conflict, unavailable.
	Retries *prometheus.CounterVec
	// Unknown counts batches whose COMMIT had an unknown outcome.
	Unknown prometheus.Counter
	// Resolved counts batches, or parts of one, whose unknown outcome was resolved by a clean COMMIT.
	Resolved prometheus.Counter
	// QueueLength is the number of steps waiting to be taken.
	QueueLength prometheus.Gauge
}

// Label values of Metrics.Steps and Metrics.Retries.
const (
	labelOutcome  = "outcome"
	labelReason   = "reason"
	nameCommitted = "committed"
	nameRefused   = "not_committed"
	nameUnknown   = "unknown"
	nameConflict  = "conflict"
	nameAway      = "unavailable"
)

// NewMetrics makes the collectors and registers them on reg, which may be nil. Registering twice on one Registerer
// panics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: "schemegate_commit_" + name, Help: help})
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		vec := factory.NewCounterVec(prometheus.CounterOpts{Name: "schemegate_commit_" + name, Help: help}, []string{label})
		for _, value := range values {
			vec.WithLabelValues(value) // present from the start, so that an alert on it sees a 0
		}
		return vec
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return factory.NewHistogram(prometheus.HistogramOpts{Name: "schemegate_commit_" + name, Help: help, Buckets: buckets})
	}
	return &Metrics{
		Batches: counter("batches_total", "Batches taken off the queue."),
		Steps: counters("steps_total", "Steps by outcome.", labelOutcome,
			nameCommitted, nameRefused, nameUnknown),
		BatchSize: histogram("batch_size", "Steps per batch.", prometheus.ExponentialBuckets(1, 2, 10)),
		Duration: histogram("duration_seconds", "Time from taking a batch to its last outcome.",
			prometheus.ExponentialBuckets(0.0005, 2, 16)),
		Halvings: counter("halvings_total", "Batches cut in two to find a refused step; expected 0."),
		Retries: counters("retries_total", "Further attempts at batches that were certainly not committed.", labelReason,
			nameConflict, nameAway),
		Unknown:  counter("unknown_total", "Batches whose COMMIT had an unknown outcome."),
		Resolved: counter("resolved_total", "Batches or parts whose unknown outcome was resolved."),
		QueueLength: factory.NewGauge(prometheus.GaugeOpts{Name: "schemegate_commit_queue_length",
			Help: "Steps waiting to be taken."}),
	}
}
