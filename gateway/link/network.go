package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
)

// keep signs on, asks an idle peer whether it lives, carries out orders, and signs off when ctx ends. It returns when the socket has been given up.
func (s *socket) keep(ctx context.Context) {
	_ = s.signOn(ctx)
	var again <-chan time.Time
	var pause time.Duration
	for {
		idle := time.NewTimer(max(s.line.cfg.EchoInterval.Std()-s.idleFor(), pause))
		pause = 0
		select {
		case <-s.done:
		case <-ctx.Done():
			s.shutDown()
		case <-s.changed:
			switch s.line.State() {
			case SigningOn:
				again = nil
				_ = s.signOn(ctx)
			case SignedOff:
				again = time.After(s.line.cfg.SignOnAgainAfter.Std())
			}
		case <-again:
			again = nil
			if s.line.become(SigningOn, SignedOff) {
				_ = s.signOn(ctx)
			}
		case do := <-s.orders:
			do(ctx)
		case <-idle.C:
			if s.idleFor() >= s.line.cfg.EchoInterval.Std() {
				pause = s.echo(ctx)
			}
		}
		idle.Stop()
		select {
		case <-s.done:
			return
		default:
		}
	}
}

// signOn opens the link for financial traffic, or gives up the socket, whose reason is in the log then. It does nothing in another
// state than SigningOn, and leaves a link that is signed off as planned signed off.
func (s *socket) signOn(ctx context.Context) error {
	l := s.line
	if l.link.plannedOff() {
		l.become(SignedOff, SigningOn)
	}
	if l.State() != SigningOn {
		return nil
	}
	if l.cfg.SignOn.Required {
		if err := s.askSignOn(ctx); err != nil {
			return fmt.Errorf("sign on: %w", err)
		}
		if !s.announced.Load() {
			return nil // the peer signed us off behind its answer; what it asked for afterwards has woken keep
		}
	}
	if l.become(SignedOn, SigningOn) {
		s.signedOnAt = time.Now()
	}
	return nil
}

// askSignOn exchanges the sign-on. After an error other than ctx's the socket is given up.
func (s *socket) askSignOn(ctx context.Context) error {
	t := &s.line.table
	s.announced.Store(true)
	code, err := s.networkCall(ctx, t.codes.SignOn, t.signOn, s.line.cfg.SignOnTimeout.Std())
	switch {
	case err != nil && ctx.Err() != nil:
		return err // keep ends the socket, or tries again
	case errors.Is(err, ErrTimeout):
		s.giveUp(DownSignOnTimeout, s.silence())
	case err != nil:
		s.giveUp(DownSignOnFailed, err) // without effect where the socket has been lost meanwhile
	case !t.approves(code):
		err = fmt.Errorf("sign-on answered with DE 39 = %q", code)
		s.giveUp(DownSignOnRefused, err)
	}
	return err
}

// echo asks until something is received, and gives up the socket of a peer that is silent through all its echoes. What cannot be
// sent proves nothing about the peer, so it is not a miss: the result is the time to wait before the next attempt then, else 0.
func (s *socket) echo(ctx context.Context) (pause time.Duration) {
	cfg := &s.line.cfg
	for range cfg.EchoMisses {
		before := s.lastFrame.Load()
		sentAt := time.Now()
		_, err := s.networkCall(ctx, s.line.table.codes.Echo, s.line.table.echo, cfg.EchoTimeout.Std())
		switch {
		case err == nil:
			s.line.noteEcho(time.Since(sentAt))
			return 0
		case ctx.Err() != nil || s.lastFrame.Load() != before:
			return 0
		case NotSent(err) && !errors.Is(err, ErrExpired):
			s.line.log.Warn("echo not sent", zap.Error(err))
			return cfg.EchoTimeout.Std()
		}
	}
	s.giveUp(DownPeerSilent, s.silence())
	return 0
}

// shutDown completes what is pending, signs off and ends the socket, all within Config.SignOnTimeout.
func (s *socket) shutDown() {
	l := s.line
	signedOn := l.State() == SignedOn || l.link.plannedOff() && s.announced.Load()
	l.link.stop()
	l.become(SigningOff, SigningOn, SignedOn, SignedOff)
	s.abandon(DownShutdown)
	if signedOn && l.cfg.SignOn.Required {
		_, err := s.networkCall(context.Background(), l.table.codes.SignOff, l.table.signOff(), l.cfg.SignOnTimeout.Std())
		if err != nil {
			l.log.Warn("sign-off not answered", zap.Error(err))
		}
	}
	s.giveUp(DownShutdown, nil)
}

// networkCall exchanges one request of the table and gives DE 39 of its answer. It takes no longer than timeout.
func (s *socket) networkCall(ctx context.Context, code string, elements map[iso8583.Element]string, timeout time.Duration) (string, error) {
	l, now := s.line, time.Now()
	deadline := now.Add(timeout)
	request := l.spec.NewMessage(l.table.requestMTI)
	err := errors.Join(request.Set(iso8583.STAN, l.link.networkSTAN()), request.Set(l.table.code, code))
	for e, form := range l.table.clock {
		err = errors.Join(err, request.Set(e, now.UTC().Format(clockLayouts[form]))) // DE 7 is UTC
	}
	for e, value := range elements {
		err = errors.Join(err, request.Set(e, value))
	}
	if err != nil {
		return "", &notSentError{text: "build network management request", cause: err}
	}
	body, err := l.spec.Encode(request)
	if err != nil {
		return "", &notSentError{text: "encode network management request", cause: err}
	}
	c, err := l.link.newCall(Call{Body: body, Deadline: deadline})
	if err != nil {
		return "", &notSentError{text: "prepare network management request", cause: err}
	}
	c.signOn = code == l.table.codes.SignOn
	response, err := s.exchange(ctx, c)
	if err != nil {
		return "", err
	}
	var peeked iso8583.Peeked
	if err := l.spec.Peek(response, &peeked); err != nil {
		return "", fmt.Errorf("read network management response: %w", err)
	}
	return string(peeked.AppendValue(nil, iso8583.ResponseCode)), nil
}

// networkSTAN gives DE 11 of one of our own class 8 messages, in the profile's range. The link counts by itself, from a random start:
// finding a dead peer must not depend on anything else.
func (l *Link) networkSTAN() string {
	r := l.cfg.NetworkSTANs
	return fmt.Sprintf("%06d", r.From+l.lastSTAN.Add(1)%(r.To-r.From+1))
}
