package gateway

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

const (
	// adviceResponse is the third digit of the answer to a completion.
	adviceResponse = 3
	// stanAloneWithin is how old at most what a response belongs to may be that brings nothing but a STAN: STANs come round again.
	stanAloneWithin = 24 * time.Hour
	// maxCandidates bounds what one response may fit; more than one is ambiguous anyway.
	maxCandidates = 10
)

// lateSubject is what a response that answers nobody belongs to. It is never the first of several that fit: those are tenants and
// authorisations for a person.
type lateSubject struct {
	original *Authorization // nil when none, or more than one, fits
	duty     *lateDuty      // whose response it is; nil for the response of the authorisation itself
	fits     []uuid.UUID    // the authorisations, when there are several duties or several authorisations
	tenant   string         // of the first of fits
}

// lateDuty is a duty as a late response finds it.
type lateDuty struct {
	reversal.Duty
	state reversal.State
}

// findLate finds what a response belongs to: a duty by its own STAN or, where it has none, its original's; an authorisation by STAN and
// DE 7. The RRN confirms where DE 7 cannot, and stands alone where the host leaves the STAN out.
func (g *Gateway) findLate(ctx context.Context, l *cardLink, m *iso8583.Message, at time.Time) (lateSubject, error) {
	if !l.spec.IsResponse(m.MTI()) {
		return lateSubject{}, nil
	}
	stan, rrn, since, key := m.Get(iso8583.STAN), m.Get(iso8583.RRN), at.Add(-stanAloneWithin), l.keyElements(m.MTI())
	if rrn != "" && !slices.Contains(key, iso8583.STAN) {
		stan = "" // a host that rewrites it
	}
	switch kind := l.answers(m.MTI()); kind {
	case answersNothing:
		return lateSubject{}, nil
	case answersRequest:
		dateTime := m.Get(iso8583.TransmissionDateTime)
		if !slices.Contains(key, iso8583.TransmissionDateTime) {
			dateTime = "" // likewise
		}
		found, err := selectOriginals(ctx, g.db, l.name, stan, dateTime, rrn, since)
		if err != nil {
			return lateSubject{}, err
		}
		return newestOriginal(slices.DeleteFunc(found, func(a *Authorization) bool { return !l.isAnswerTo(m.MTI(), a.MTI) })), nil
	default:
		duties, err := selectAnswered(ctx, g.db, l.name, reversal.Kind(kind), stan, rrn, since)
		if err != nil || len(duties) == 0 {
			return lateSubject{}, err
		}
		return g.onlyDuty(ctx, duties)
	}
}

// keyElements are those by which the profile takes a response for the answer to its request. A host may rewrite all others.
func (l *cardLink) keyElements(response iso8583.MTI) []iso8583.Element {
	for request, elements := range l.config.Correlations {
		if l.spec.ResponseTo(request) == response {
			return elements
		}
	}
	return l.config.Correlation
}

// What a response can answer: a kind of duty, or one of these.
const (
	answersNothing = ""
	answersRequest = "request"
)

// answers tells what a response's message type answers, by the profile's own types first and by the standard's classes else: a profile
// may have changed since.
func (l *cardLink) answers(m iso8583.MTI) string {
	authorization, financial := iso8583.MTIAuthorizationRequest.Class(), uint8(financialClass)
	switch class := m.Class(); {
	case l.isAnswerTo(m, l.config.Reversal.MTI) || class == iso8583.MTIReversalAdvice.Class():
		return string(reversal.Reversal)
	case class != authorization && class != financial:
		return answersNothing
	case l.isAnswerTo(m, l.config.Captures.MTI) || m.Function() == adviceResponse:
		return string(reversal.Capture)
	}
	return answersRequest
}

// isAnswerTo tells whether m is the response to a request type, given as text.
func (l *cardLink) isAnswerTo(m iso8583.MTI, request string) bool {
	mti, err := iso8583.ParseMTI(request)
	return err == nil && l.spec.ResponseTo(mti) == m
}

// newestOriginal takes the newest of those found where the others are so old that DE 7, which has no year, has come round again.
func newestOriginal(found []*Authorization) lateSubject {
	switch {
	case len(found) == 0:
		return lateSubject{}
	case len(found) == 1 || found[0].CreatedAt.Sub(found[1].CreatedAt) >= repeatedDateTime:
		return lateSubject{original: found[0]}
	}
	several := lateSubject{tenant: found[0].Tenant}
	for _, a := range found {
		several.fits = append(several.fits, a.ID)
	}
	return several
}

// onlyDuty takes the duty if there is but one.
func (g *Gateway) onlyDuty(ctx context.Context, duties []lateDuty) (lateSubject, error) {
	if len(duties) > 1 {
		several := lateSubject{tenant: duties[0].Tenant}
		for _, d := range duties {
			if !slices.Contains(several.fits, d.AuthorizationID) {
				several.fits = append(several.fits, d.AuthorizationID)
			}
		}
		return several, nil
	}
	originals, err := selectByIDs(ctx, g.db, []uuid.UUID{duties[0].AuthorizationID})
	if err != nil {
		return lateSubject{}, err
	}
	return lateSubject{original: originals[duties[0].AuthorizationID], duty: &duties[0]}, nil
}

// ambiguity is what a person is told about a response that fits several.
func (s lateSubject) ambiguity() string {
	return fmt.Sprintf("a response fits more than one: it was taken for none of the duties or requests of %v", s.fits)
}
