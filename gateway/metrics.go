package gateway

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/schemegate/schemegate/reversal"
)

// metrics are the gateway's own. Labels are links and enumerated words, never references.
type metrics struct {
	recorded             *prometheus.CounterVec
	decided              *prometheus.CounterVec
	authorizationSeconds *prometheus.HistogramVec
	repeats              *prometheus.CounterVec
	refused              *prometheus.CounterVec
	late                 *prometheus.CounterVec
	unmatchedDropped     *prometheus.CounterVec
	duplicatesDropped    prometheus.Counter
	capturesOpen         *prometheus.GaugeVec
	captureOldest        *prometheus.GaugeVec
	reversalAttempts     *prometheus.CounterVec
	reversalsOpen        *prometheus.GaugeVec
	reversalOldest       *prometheus.GaugeVec
	inFlight             prometheus.GaugeFunc
	oldestInFlight       prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, inFlight, oldestSeconds func() float64) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schemegate_" + name, Help: help}, labels)
	}
	m := &metrics{
		recorded: counter("authorizations_recorded_total", "Authorisations recorded, each once per intent.", "link"),
		decided:  counter("authorizations_decided_total", "Authorisations that left pending, by state.", "link", "state"),
		authorizationSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "schemegate_authorization_seconds",
			Help: "From the request's entry to its decision.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"link"}),
		repeats:          counter("repeats_total", "Requests that repeat an earlier key or reference, by what they got; nothing was sent for them.", "reason"),
		refused:          counter("requests_refused_total", "Requests refused before anything was recorded, by code.", "code"),
		late:             counter("late_responses_total", "Answers to authorisations that had been decided without them.", "link"),
		unmatchedDropped: counter("unmatched_messages_dropped_total", "Unmatched messages that could not be written down; must stay 0.", "link"),
		duplicatesDropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "schemegate_duplicates_dropped_total",
			Help: "Repeats that were answered but not kept in the dedup journal."}),
		reversalAttempts: counter("duty_attempts_total", "Attempts to deliver a reversal or a capture, by what came of them.", "link", "kind", "outcome"),
		capturesOpen:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schemegate_captures_open", Help: "Captures not acknowledged, by state."}, []string{"link", "state"}),
		captureOldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schemegate_capture_oldest_open_seconds",
			Help: "Age of the oldest capture not acknowledged; 0 when there is none."}, []string{"link"}),
		reversalsOpen: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schemegate_reversals_open", Help: "Reversals not acknowledged, by state."}, []string{"link", "state"}),
		reversalOldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schemegate_reversal_oldest_open_seconds",
			Help: "Age of the oldest reversal not acknowledged; 0 when there is none."}, []string{"link"}),
		inFlight: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "schemegate_authorizations_in_flight",
			Help: "Authorisations this process is running."}, inFlight),
		oldestInFlight: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "schemegate_authorization_oldest_in_progress_seconds",
			Help: "Age of the oldest authorisation this process is running; 0 when there is none."}, oldestSeconds),
	}
	reg.MustRegister(m.recorded, m.decided, m.authorizationSeconds, m.repeats, m.refused, m.late, m.unmatchedDropped, m.duplicatesDropped, m.capturesOpen, m.captureOldest,
		m.reversalAttempts, m.reversalsOpen, m.reversalOldest, m.inFlight, m.oldestInFlight)
	for _, reason := range []string{"replayed", "key_reuse", "duplicate_reference", "in_progress", "reversed_before"} {
		m.repeats.WithLabelValues(reason)
	}
	return m
}

// setBacklog shows every link and state, the empty ones as 0; links that are not configured here are shown while they have open
// duties.
func (m *metrics) setBacklog(backlog []reversal.Backlog, configured []string, now time.Time) {
	links := slices.Clone(configured)
	for _, b := range backlog {
		if !slices.Contains(links, b.Link) {
			links = append(links, b.Link)
		}
	}
	setBacklogOf(reversal.Reversal, m.reversalsOpen, m.reversalOldest, backlog, links, now)
	setBacklogOf(reversal.Capture, m.capturesOpen, m.captureOldest, backlog, links, now)
}

func setBacklogOf(kind reversal.Kind, open, oldestOpen *prometheus.GaugeVec, backlog []reversal.Backlog, links []string, now time.Time) {
	open.Reset()
	oldestOpen.Reset()
	for _, name := range links {
		oldest := 0.0
		count := map[reversal.State]int64{}
		for _, b := range backlog {
			if b.Link == name && b.Kind == kind {
				count[b.State] = b.Count
				oldest = max(oldest, now.Sub(b.OldestAt).Seconds())
			}
		}
		open.WithLabelValues(name, string(reversal.Owed)).Set(float64(count[reversal.Owed]))
		open.WithLabelValues(name, string(reversal.Suspended)).Set(float64(count[reversal.Suspended]))
		oldestOpen.WithLabelValues(name).Set(oldest)
	}
}
