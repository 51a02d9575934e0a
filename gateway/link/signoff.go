package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// SignOffReason says who took a line out of traffic.
type SignOffReason string

// The reasons.
const (
	SignedOffByPeer SignOffReason = "peer"    // by its own 0800; we sign on again after Config.SignOnAgainAfter, or when it asks us to
	SignedOffByPlan SignOffReason = "planned" // by SignOff; until SignOn
)

// ErrSignedOff refuses a financial call between SignOff and SignOn. NotSent is true for it.
var ErrSignedOff error = &notSentError{text: "link is signed off as planned"}

// SignOff takes the link out of financial traffic until SignOn is called, over reconnects too: it goes on dialling, answering the
// peer's requests and asking whether the peer lives, but does not sign on.
//
// From the moment of the call new financial calls are refused with ErrSignedOff. Calls in flight find their answers or their
// deadlines; when they have, or when ctx ends, the sign-off goes out on every connected line, and its answer is awaited for
// Config.SignOnTimeout. The error says what was not as planned: calls that still waited, a sign-off not answered or refused. The link
// is signed off all the same, and SignOff may be called again.
func (l *Link) SignOff(ctx context.Context) error {
	l.setPlanned(true)
	for _, line := range l.lines {
		line.become(SignedOff, SigningOn, SignedOn)
	}
	waiting := l.awaitAnswers(ctx)
	if !l.cfg.SignOn.Required {
		return waiting
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(waiting, l.eachSocket(func(s *socket) error { return s.order(ctx, s.signOff) }))
}

// SignOn ends what SignOff began: every connected line signs on, and the others do when they have connected. The error joins those of
// the lines that could not; they reconnect and try again by themselves.
func (l *Link) SignOn(ctx context.Context) error {
	l.setPlanned(false)
	for _, line := range l.lines {
		line.become(SigningOn, SignedOff)
	}
	return l.eachSocket(func(s *socket) error {
		err := s.order(ctx, s.signOn)
		if ctx.Err() != nil {
			s.wake() // keep may not have taken the order
		}
		return err
	})
}

// setPlanned begins or ends a planned sign-off. Its end ends the wait for the calls in flight too.
func (l *Link) setPlanned(off bool) {
	l.mu.Lock()
	l.planned = off
	if !off && l.settled != nil {
		close(l.settled)
		l.settled = nil
	}
	l.mu.Unlock()
	l.log.Info("planned sign-off", zap.Bool("off", off))
}

// plannedOff tells whether the link is between SignOff and SignOn.
func (l *Link) plannedOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.planned
}

// signedOffBy tells who took the line out of traffic; the caller holds Link.mu.
func (l *Line) signedOffBy() SignOffReason {
	switch {
	case l.link.planned:
		return SignedOffByPlan
	case l.status.State == SignedOff:
		return SignedOffByPeer
	}
	return ""
}

// eachSocket runs do for the sockets of the moment, all at once, and joins the errors.
func (l *Link) eachSocket(do func(*socket) error) error {
	var sockets []*socket
	l.mu.Lock()
	for _, line := range l.lines {
		if line.socket != nil {
			sockets = append(sockets, line.socket)
		}
	}
	l.mu.Unlock()
	errs := make([]error, len(sockets))
	var wg sync.WaitGroup
	for i, s := range sockets {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil && len(l.lines) > 1 {
			errs[i] = fmt.Errorf("line %d: %w", sockets[i].line.number, err)
		}
	}
	return errors.Join(errs...)
}

// awaitAnswers waits until no financial call is pending any more, or until SignOn is called.
func (l *Link) awaitAnswers(ctx context.Context) error {
	for {
		l.mu.Lock()
		n := l.financialPending()
		if n == 0 || !l.planned {
			l.mu.Unlock()
			return nil
		}
		if l.settled == nil {
			l.settled = make(chan struct{})
		}
		settled := l.settled
		l.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return fmt.Errorf("sign off: %d calls still wait for their answers: %w", n, context.Cause(ctx))
		}
	}
}

// financialPending counts the calls that a sign-off waits for; the caller holds mu.
func (l *Link) financialPending() int {
	n := 0
	for _, c := range l.pending {
		if !c.network() {
			n++
		}
	}
	return n
}

// noteSettled wakes awaitAnswers when the last financial call has left the pending map; the caller holds mu. While nobody waits it
// costs a comparison.
func (l *Link) noteSettled() {
	if l.settled == nil {
		return
	}
	for _, c := range l.pending {
		if !c.network() {
			return
		}
	}
	close(l.settled)
	l.settled = nil
}

// signOff sends the planned sign-off, unless SignOn was called meanwhile or the peer holds us for signed off anyway.
func (s *socket) signOff(ctx context.Context) error {
	l := s.line
	switch {
	case !l.link.plannedOff():
		return errSignedOnMeanwhile
	case !s.announced.Load():
		return nil
	}
	code, err := s.networkCall(ctx, l.table.codes.SignOff, l.table.signOff(), l.cfg.SignOnTimeout.Std())
	if err != nil {
		return fmt.Errorf("sign off: %w", err)
	}
	if !l.table.approves(code) {
		return fmt.Errorf("sign off: answered with DE 39 = %q", code)
	}
	s.announced.Store(false)
	return nil
}

var errSignedOnMeanwhile = errors.New("sign off: the link was signed on again meanwhile")

// order has keep do something between its own exchanges, so that sign-ons and sign-offs go out in one order, and waits for the result.
// When ctx ends first, what keep has begun goes on.
func (s *socket) order(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	select {
	case s.orders <- func(ctx context.Context) { result <- do(ctx) }:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.done:
		return ErrDown
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
