package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/reversal"
)

// LinkAction is what a person does with a link.
type LinkAction string

// The actions. A held link takes no new requests; what is in flight and what is owed goes on. Sign-off is planned: it outlives
// reconnects and restarts, and nothing financial is sent, what is owed included, until the link is signed on again.
const (
	LinkHold    LinkAction = "hold"
	LinkResume  LinkAction = "resume"
	LinkSignOn  LinkAction = "sign_on"
	LinkSignOff LinkAction = "sign_off"
)

// LinkActions are all of them.
func LinkActions() []LinkAction { return []LinkAction{LinkHold, LinkResume, LinkSignOn, LinkSignOff} }

// controlInterval is how often a daemon looks for what people decided by another one, or by the command line.
const controlInterval = time.Second

// linkControl is what was decided about a link, as this daemon knows it.
type linkControl struct {
	mu           sync.Mutex // protects the following
	version      int32      // of the row that was applied; 0 before the first
	held         bool
	signedOff    bool
	reason       string
	businessDate time.Time

	applying sync.Mutex // one sign-off or sign-on at a time
}

func (c *linkControl) isHeld() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// date is the scheme's business date; zero before its first cutover notice.
func (c *linkControl) date() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.businessDate
}

// LinkView is a link as operators see it: the line's state, and what people decided.
type LinkView struct {
	link.Status
	Held         bool
	PlannedOff   bool
	Reason       string // why, of the last decision
	BusinessDate time.Time
}

// Links lists the links as they stand, by name.
func (g *Gateway) Links() []LinkView {
	views := make([]LinkView, len(g.linkNames))
	for i, name := range g.linkNames {
		views[i] = g.links[name].view()
	}
	return views
}

func (l *cardLink) view() LinkView {
	v := LinkView{Status: l.line.Status()}
	l.control.mu.Lock()
	defer l.control.mu.Unlock()
	v.Held, v.PlannedOff, v.Reason, v.BusinessDate = l.control.held, l.control.signedOff, l.control.reason, l.control.businessDate
	return v
}

// LinkRequest is the body of POST /v1/links/{name}/hold and its siblings.
type LinkRequest struct {
	Reason string `json:"reason"`
}

// ParseLinkRequest decodes and validates the body; every fault is reported at once.
func ParseLinkRequest(body []byte) (LinkRequest, error) {
	var req LinkRequest
	faults, err := decodeStrict(body, &req)
	if err != nil {
		return req, err
	}
	req.Reason = strings.TrimSpace(req.Reason)
	if err := reversal.CheckReason(req.Reason); err != nil && len(faults) == 0 {
		faults = append(faults, FieldFault{"reason", err.Error()})
	}
	if len(faults) > 0 {
		return req, &Error{Code: CodeValidationFailed, Detail: fmt.Sprintf("%d faults", len(faults)), Faults: faults}
	}
	return req, nil
}

// LinkCall is one such POST as the HTTP side hands it over.
type LinkCall struct {
	Tenant         string
	IdempotencyKey string
	Link           string
	Action         LinkAction
	Request        LinkRequest // from ParseLinkRequest
}

// ControlLink carries out a person's decision about a link: it is committed first, then applied here, and by every other daemon
// within controlInterval. A sign-off waits for the answers in flight in the background. Deciding what stands already changes nothing,
// and a repeat decides nothing anew.
func (g *Gateway) ControlLink(ctx context.Context, call LinkCall) (Answer, error) {
	if g.links[call.Link] == nil {
		return Answer{}, &Error{Code: CodeNotFound}
	}
	op := operation{tenant: call.Tenant, endpoint: endpointLinks, idempotencyKey: call.IdempotencyKey, reference: call.IdempotencyKey,
		digest: g.operationDigest(call.Tenant, endpointLinks+"/"+call.Link+"/"+string(call.Action), uuid.Nil, &call.Request)}
	answer, err := g.operate(ctx, op, func(ctx context.Context, tx pgx.Tx, now time.Time) (Answer, error) {
		row, err := updateControl(ctx, tx, call.Link, call.Action, call.Request.Reason, now)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Status: http.StatusOK, Body: row.json(), Resource: "/v1/links"}, nil
	})
	if err != nil || answer.Replayed {
		return answer, err
	}
	if ok, _ := g.inFlight.take(); !ok {
		return answer, nil // a daemon that is stopping turns no line any more; it is applied when it starts
	}
	defer g.inFlight.Done()
	if err := g.applyControls(ctx); err != nil {
		g.log.Warn("link control is applied within a moment", zap.String("link", call.Link), zap.Error(err))
	}
	return answer, nil
}

// json is the body that answers a decision: what now stands about the link.
func (c controlRow) json() []byte {
	body, err := json.Marshal(struct {
		Name      string `json:"name"`
		Held      bool   `json:"held"`
		SignedOff bool   `json:"planned_sign_off"`
		Reason    string `json:"reason"`
		Version   int32  `json:"version"`
	}{c.link, c.held, c.signedOff, c.reason, c.version})
	if err != nil { // plain fields only
		panic(fmt.Sprintf("marshal link control: %v", err))
	}
	return body
}

// DecideLink commits a person's decision about a link from beside a daemon; every daemon on this database applies it within
// controlInterval.
func DecideLink(ctx context.Context, db *pgxpool.Pool, name string, action LinkAction, reason string, now time.Time) error {
	reason = strings.TrimSpace(reason)
	if err := reversal.CheckReason(reason); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := updateControl(ctx, tx, name, action, reason, now)
		return err
	})
}

// watchControls applies what people decide elsewhere until ctx ends.
func (g *Gateway) watchControls(ctx context.Context) error {
	ticker := time.NewTicker(controlInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.applyControls(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("link controls not read", zap.Error(err))
		}
	}
}

// applyControls reads the decisions and applies those that are news.
func (g *Gateway) applyControls(ctx context.Context) error {
	rows, err := selectControls(ctx, g.db, g.linkNames)
	if err != nil {
		return err
	}
	for _, row := range rows {
		g.links[row.link].apply(g, row)
	}
	return nil
}

func (l *cardLink) apply(g *Gateway, row controlRow) {
	l.control.mu.Lock()
	c := &l.control
	c.businessDate = later(c.businessDate, row.businessDate)
	if row.version <= c.version {
		c.mu.Unlock()
		return
	}
	turn := row.signedOff != c.signedOff
	c.version, c.held, c.signedOff, c.reason = row.version, row.held, row.signedOff, row.reason
	c.mu.Unlock()
	g.log.Warn("link control changed", zap.String("link", l.name), zap.Bool("held", row.held), zap.Bool("signed_off", row.signedOff), zap.String("reason", row.reason))
	if turn {
		g.turns.Go(func() { l.turn(g) })
	}
}

// turn signs the line off or on, as was decided last.
func (l *cardLink) turn(g *Gateway) {
	l.control.applying.Lock()
	defer l.control.applying.Unlock()
	l.control.mu.Lock()
	off := l.control.signedOff
	l.control.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), l.latest()+l.config.SignOnTimeout.Std())
	defer cancel()
	carry := l.line.SignOn
	if off {
		carry = l.line.SignOff
	}
	if err := carry(ctx); err != nil {
		g.log.Warn("link not turned as planned", zap.String("link", l.name), zap.Bool("signed_off", off), zap.Error(err))
	}
}

// cutOver takes the business date of a scheme's cutover notice for what is recorded from now on. It is called by a link's reader and
// never blocks it.
func (g *Gateway) cutOver(l *cardLink, text string) {
	day, err := businessDate(text, g.now())
	if err != nil {
		g.log.Error("cutover date not taken", zap.String("link", l.name), zap.Error(err))
		return
	}
	l.control.mu.Lock()
	l.control.businessDate = later(l.control.businessDate, day)
	l.control.mu.Unlock()
	g.turns.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		if err := updateBusinessDate(ctx, g.db, l.name, day, g.now()); err != nil {
			g.log.Warn("business date not kept; a restart waits for the next cutover", zap.String("link", l.name), zap.Error(err))
		}
	})
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
