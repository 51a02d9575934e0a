package link

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/schemegate/schemegate/iso8583"
)

// mtiClasses are the metric's label by the second digit of the MTI.
var mtiClasses = [10]string{
	"reserved", "authorization", "financial", "file_action", "reversal", "reconciliation", "administrative", "fee_collection",
	"network_management", "reserved",
}

// Metrics are the links' metrics, one set for all links of a process, told apart by the label link.
type Metrics struct {
	up, signedOn, linesSignedOn, pending                  *prometheus.GaugeVec
	sent, received, unmatched, down                       *prometheus.CounterVec
	reconnects, writeTimeouts, keepAlives, answersDropped *prometheus.CounterVec
	throttled                                             *prometheus.CounterVec
	certificateExpiry                                     *prometheus.GaugeVec
	echoRoundTrip                                         *prometheus.HistogramVec
}

// linkMetrics are one link's, looked up once: the hot path does no label search.
type linkMetrics struct {
	up, signedOn, linesSignedOn, pending                  prometheus.Gauge
	sent, received                                        [10]prometheus.Counter // by MTI class digit
	unmatched                                             map[UnmatchedKind]prometheus.Counter
	down                                                  map[DownReason]prometheus.Counter
	reconnects, writeTimeouts, keepAlives, answersDropped prometheus.Counter
	throttled                                             prometheus.Counter
	certificateExpiry                                     *prometheus.GaugeVec // by line and whose; not every link has any
	echoRoundTrip                                         prometheus.Observer
}

// NewMetrics makes the metrics and registers them where registerer is not nil. It panics when they are registered there already.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	gaugeVec := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schemegate_link_" + name, Help: help}, []string{"link"})
	}
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schemegate_link_" + name, Help: help},
			append([]string{"link"}, labels...))
	}
	m := &Metrics{
		up:             gaugeVec("up", "1 while a line of the link has a socket."),
		signedOn:       gaugeVec("signed_on", "1 while a line of the link is signed on, so that financial traffic flows."),
		linesSignedOn:  gaugeVec("lines_signed_on", "Lines that are signed on."),
		pending:        gaugeVec("pending", "Calls that wait for the write or for their answer."),
		sent:           counterVec("frames_sent_total", "Frames written, by MTI class.", "class"),
		received:       counterVec("frames_received_total", "Messages received, by MTI class.", "class"),
		unmatched:      counterVec("unmatched_total", "Messages received that answered no pending call, by kind.", "kind"),
		down:           counterVec("down_total", "Sockets given up or not had, by reason.", "reason"),
		reconnects:     counterVec("reconnects_total", "Attempts to connect after the first."),
		writeTimeouts:  counterVec("write_timeouts_total", "Writes that the peer did not take in time."),
		keepAlives:     counterVec("keep_alives_total", "Zero-length frames received and swallowed."),
		answersDropped: counterVec("answers_dropped_total", "Class 8 requests of the peer beyond the rate that is answered."),
		throttled:      counterVec("throttled_total", "Pauses in reading a peer that sends more than its budgets."),
		certificateExpiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "schemegate_link_certificate_expiry_timestamp_seconds",
			Help: "Unix time at which a certificate of the last TLS handshake ends, the peer's or our own.",
		}, []string{"link", "line", "certificate"}),
		echoRoundTrip: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "schemegate_link_echo_round_trip_seconds", Help: "From the echo request to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}, []string{"link"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.up, m.signedOn, m.linesSignedOn, m.pending, m.sent, m.received, m.unmatched, m.down, m.reconnects,
			m.writeTimeouts, m.keepAlives, m.answersDropped, m.throttled, m.certificateExpiry, m.echoRoundTrip)
	}
	return m
}

func (m *Metrics) forLink(name string) linkMetrics {
	lm := linkMetrics{
		up: m.up.WithLabelValues(name), signedOn: m.signedOn.WithLabelValues(name), pending: m.pending.WithLabelValues(name),
		linesSignedOn:  m.linesSignedOn.WithLabelValues(name),
		unmatched:      make(map[UnmatchedKind]prometheus.Counter, len(unmatchedKinds)),
		down:           make(map[DownReason]prometheus.Counter, len(downReasons)),
		reconnects:     m.reconnects.WithLabelValues(name),
		writeTimeouts:  m.writeTimeouts.WithLabelValues(name),
		keepAlives:     m.keepAlives.WithLabelValues(name),
		answersDropped: m.answersDropped.WithLabelValues(name),
		throttled:      m.throttled.WithLabelValues(name), certificateExpiry: m.certificateExpiry,
		echoRoundTrip: m.echoRoundTrip.WithLabelValues(name),
	}
	for digit, class := range mtiClasses {
		lm.sent[digit] = m.sent.WithLabelValues(name, class)
		lm.received[digit] = m.received.WithLabelValues(name, class)
	}
	for _, kind := range unmatchedKinds {
		lm.unmatched[kind] = m.unmatched.WithLabelValues(name, string(kind))
	}
	for _, reason := range downReasons {
		lm.down[reason] = m.down.WithLabelValues(name, string(reason))
	}
	return lm
}

// class gives the index of an MTI's counters. A nibble above 9 cannot come out of a parsed MTI; it must not be able to panic.
func class(mti iso8583.MTI) int { return min(int(mti.Class()), len(mtiClasses)-1) }
