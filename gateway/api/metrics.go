package api

import "github.com/prometheus/client_golang/prometheus"

// metrics are the API's own. A route is its pattern, never a path.
type metrics struct {
	requests           *prometheus.CounterVec
	seconds            *prometheus.HistogramVec
	withoutKey         prometheus.Counter
	panics             prometheus.Counter
	connectionsRefused prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, connections func() float64) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schemegate_http_requests_total",
			Help: "Requests answered, by route and status; 0 is a caller cut off before an answer."}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "schemegate_http_request_seconds",
			Help: "From a request's headers to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"route"}),
		withoutKey: prometheus.NewCounter(prometheus.CounterOpts{Name: "schemegate_requests_without_key_total",
			Help: "Mutating requests that brought no Idempotency-Key and were refused."}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "schemegate_http_panics_total",
			Help: "Requests whose handler panicked; must stay 0."}),
		connectionsRefused: prometheus.NewCounter(prometheus.CounterOpts{Name: "schemegate_http_connections_refused_total",
			Help: "Connections closed at once because there were too many."}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "schemegate_http_connections", Help: "Open connections of the API."}, connections)
	reg.MustRegister(m.requests, m.seconds, m.withoutKey, m.panics, m.connectionsRefused, open)
	return m
}
