package ledger

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the ledger's own.
type Metrics struct {
	// UniqueIndexHits counts postings that a unique index refused. The guards before it should never let one through, so
	// anything but 0 is a bug upstream. Whoever posts counts.
	UniqueIndexHits prometheus.Counter
	sealLagSeconds  prometheus.Gauge
	sealedPostings  prometheus.Counter
}

// NewMetrics registers the ledger's metrics on reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		UniqueIndexHits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "schemegate_ledger_unique_index_hits_total",
			Help: "Postings refused by a unique index of the ledger; must stay 0.",
		}),
		sealLagSeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "schemegate_ledger_seal_lag_seconds",
			Help: "Age of the oldest posting that the hash chain does not cover yet.",
		}),
		sealedPostings: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "schemegate_ledger_sealed_postings_total",
			Help: "Postings sealed into the hash chain by this daemon.",
		}),
	}
	reg.MustRegister(m.UniqueIndexHits, m.sealLagSeconds, m.sealedPostings)
	return m
}
