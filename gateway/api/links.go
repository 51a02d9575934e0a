package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/link"
)

// linkBody is a link as operators see it: as one line, what people decided about it, and each of its lines.
type linkBody struct {
	Name string `json:"name"`
	lineBody
	Held           bool       `json:"held"`
	PlannedSignOff bool       `json:"planned_sign_off"`
	Reason         string     `json:"reason,omitempty"`
	BusinessDate   string     `json:"business_date,omitempty"`
	Lines          []lineBody `json:"lines"`
}

// lineBody is one line. Counts are since the daemon's start.
type lineBody struct {
	Address              string     `json:"address"`
	State                link.State `json:"state"`
	Since                time.Time  `json:"since"`
	Connected            bool       `json:"connected"`
	SignedOn             bool       `json:"signed_on"`
	SignedOffBy          string     `json:"signed_off_by,omitempty"`
	Pending              int        `json:"pending"`
	LastReceivedAt       *time.Time `json:"last_received_at"`
	EchoRoundTripSeconds *float64   `json:"echo_round_trip_seconds"`
	LastDown             *downBody  `json:"last_down"`
	CertificateUntil     *time.Time `json:"certificate_until,omitempty"`
	FramesSent           uint64     `json:"frames_sent"`
	FramesReceived       uint64     `json:"frames_received"`
	KeepAlives           uint64     `json:"keep_alives"`
	Unmatched            uint64     `json:"unmatched"`
	Reconnects           uint64     `json:"reconnects"`
	AnswersDropped       uint64     `json:"answers_dropped"`
	Throttled            uint64     `json:"throttled"`
}

type downBody struct {
	Reason link.DownReason `json:"reason"`
	Cause  string          `json:"cause,omitempty"`
	At     time.Time       `json:"at"`
}

// listLinks shows the links of the daemon; they are the same for every tenant.
func (a *API) listLinks(w http.ResponseWriter, r *http.Request, _ caller) error {
	if err := parseQuery(r, nil).err(); err != nil {
		return err
	}
	return writeList(w, linkBodies(a.gateway.Links()), "")
}

// serveLinks is the same for operators beside the daemon, without a key.
func serveLinks(links func() []gateway.LinkView) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(linkBodies(links()))
		if err != nil { // plain fields only
			panic(fmt.Sprintf("marshal links: %v", err))
		}
		write(w, http.StatusOK, contentJSON, body)
	}
}

func linkBodies(links []gateway.LinkView) []linkBody {
	items := make([]linkBody, len(links))
	for i, l := range links {
		items[i] = linkBody{Name: l.Name, lineBody: newLineBody(l.LineStatus), Held: l.Held, PlannedSignOff: l.PlannedOff, Reason: l.Reason,
			Lines: make([]lineBody, len(l.Lines))}
		if !l.BusinessDate.IsZero() {
			items[i].BusinessDate = l.BusinessDate.Format(time.DateOnly)
		}
		for n, line := range l.Lines {
			items[i].Lines[n] = newLineBody(line)
		}
	}
	return items
}

func newLineBody(s link.LineStatus) lineBody {
	b := lineBody{
		Address: s.Address, State: s.State, Since: s.Since.UTC(), Connected: s.Connected, SignedOn: s.SignedOn, SignedOffBy: string(s.SignedOffBy),
		Pending: s.Pending, FramesSent: s.FramesSent, FramesReceived: s.FramesReceived, KeepAlives: s.KeepAlives,
		Unmatched: s.Unmatched, Reconnects: s.Reconnects, AnswersDropped: s.AnswersDropped, Throttled: s.Throttled,
	}
	if !s.LastReceived.IsZero() {
		at := s.LastReceived.UTC()
		b.LastReceivedAt = &at
	}
	if !s.CertificateUntil.IsZero() {
		at := s.CertificateUntil.UTC()
		b.CertificateUntil = &at
	}
	if s.EchoRoundTrip > 0 {
		seconds := s.EchoRoundTrip.Seconds()
		b.EchoRoundTripSeconds = &seconds
	}
	if s.LastDown != "" {
		b.LastDown = &downBody{Reason: s.LastDown, Cause: s.LastDownCause, At: s.LastDownAt.UTC()}
	}
	return b
}
