package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
)

const (
	maxSTAN = 999_999
	// networkAnswerGap is the least time between two of our answers to class 8 requests, so that two ends which answer each other's
	// echoes cannot keep each other busy.
	networkAnswerGap = 50 * time.Millisecond

	responseApproved             = "00"
	responseFunctionNotSupported = "40"
)

// keep signs on, asks an idle peer whether it lives, and signs off when ctx ends. It returns when the socket has been given up.
func (s *socket) keep(ctx context.Context) {
	s.signOn(ctx)
	var again <-chan time.Time
	var pause time.Duration
	for {
		idle := time.NewTimer(max(s.link.cfg.EchoInterval.Std()-s.idleFor(), pause))
		pause = 0
		select {
		case <-s.done:
		case <-ctx.Done():
			s.shutDown()
		case <-s.changed:
			switch s.link.State() {
			case SigningOn:
				again = nil
				s.signOn(ctx)
			case SignedOff:
				again = time.After(s.link.cfg.SignOnAgainAfter.Std())
			}
		case <-again:
			again = nil
			if s.link.become(SigningOn, SignedOff) {
				s.signOn(ctx)
			}
		case <-idle.C:
			if s.idleFor() >= s.link.cfg.EchoInterval.Std() {
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

// signOn opens the link for financial traffic, or gives up the socket.
func (s *socket) signOn(ctx context.Context) {
	l := s.link
	if l.cfg.SignOn.Required {
		code, err := s.networkCall(ctx, l.cfg.Codes.SignOn, l.cfg.SignOn.Elements, l.cfg.SignOnTimeout.Std())
		switch {
		case ctx.Err() != nil:
			return // keep ends the socket
		case errors.Is(err, ErrTimeout):
			s.giveUp(DownSignOnTimeout, s.silence())
			return
		case err != nil:
			s.giveUp(DownSignOnFailed, err) // without effect where the socket has been lost meanwhile
			return
		case code != responseApproved:
			s.giveUp(DownSignOnRefused, fmt.Errorf("sign-on answered with DE 39 = %q", code))
			return
		}
	}
	if l.become(SignedOn, SigningOn) {
		s.signedOnAt = time.Now()
	}
}

// echo asks until something is received, and gives up the socket of a peer that is silent through all its echoes. What cannot be
// sent proves nothing about the peer, so it is not a miss: the result is the time to wait before the next attempt then, else 0.
func (s *socket) echo(ctx context.Context) (pause time.Duration) {
	cfg := &s.link.cfg
	for range cfg.EchoMisses {
		before := s.lastFrame.Load()
		sentAt := time.Now()
		_, err := s.networkCall(ctx, cfg.Codes.Echo, cfg.EchoElements, cfg.EchoTimeout.Std())
		switch {
		case err == nil:
			s.link.noteEcho(time.Since(sentAt))
			return 0
		case ctx.Err() != nil || s.lastFrame.Load() != before:
			return 0
		case NotSent(err) && !errors.Is(err, ErrExpired):
			s.link.log.Warn("echo not sent", zap.Error(err))
			return cfg.EchoTimeout.Std()
		}
	}
	s.giveUp(DownPeerSilent, s.silence())
	return 0
}

// shutDown completes what is pending, signs off and ends the socket, all within Config.SignOnTimeout.
func (s *socket) shutDown() {
	l := s.link
	signedOn := l.State() == SignedOn
	l.stop()
	l.become(SigningOff, SigningOn, SignedOn, SignedOff)
	s.abandon(DownShutdown)
	if signedOn && l.cfg.SignOn.Required {
		_, err := s.networkCall(context.Background(), l.cfg.Codes.SignOff, l.cfg.SignOn.Elements, l.cfg.SignOnTimeout.Std())
		if err != nil {
			l.log.Warn("sign-off not answered", zap.Error(err))
		}
	}
	s.giveUp(DownShutdown, nil)
}

// stop makes the link refuse whatever is new, for good.
func (l *Link) stop() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()
}

// networkCall exchanges one 0800 and gives DE 39 of its answer. It takes no longer than timeout.
func (s *socket) networkCall(ctx context.Context, code string, elements map[iso8583.Element]string, timeout time.Duration) (string, error) {
	deadline := time.Now().Add(timeout)
	request := s.link.spec.NewMessage(iso8583.MTINetworkManagementRequest)
	err := errors.Join(
		request.Set(iso8583.TransmissionDateTime, time.Now().UTC().Format("0102150405")), // DE 7 is UTC
		request.Set(iso8583.STAN, s.link.networkSTAN()),
		request.Set(iso8583.NetworkManagementCode, code),
	)
	for e, value := range elements {
		err = errors.Join(err, request.Set(e, value))
	}
	if err != nil {
		return "", &notSentError{text: "build network management request", cause: err}
	}
	body, err := s.link.spec.Encode(request)
	if err != nil {
		return "", &notSentError{text: "encode network management request", cause: err}
	}
	c, err := s.link.newCall(Call{Body: body, Deadline: deadline})
	if err != nil {
		return "", &notSentError{text: "prepare network management request", cause: err}
	}
	response, err := s.exchange(ctx, c)
	if err != nil {
		return "", err
	}
	var peeked iso8583.Peeked
	if err := s.link.spec.Peek(response, &peeked); err != nil {
		return "", fmt.Errorf("read network management response: %w", err)
	}
	return string(peeked.Value(iso8583.ResponseCode)), nil
}

// networkSTAN gives DE 11 of one of our own 08xx messages. The link counts by itself, from a random start: finding a dead peer must
// not depend on anything else.
func (l *Link) networkSTAN() string { return fmt.Sprintf("%06d", 1+l.lastSTAN.Add(1)%maxSTAN) }

// serve takes a class 8 request of the peer's. The reader calls it: what it changes holds before the next message is read, and the
// answer is left to answerRequests, since a reader that writes can be blocked by the peer.
func (s *socket) serve(mti iso8583.MTI, body []byte) {
	l := s.link
	code := string(s.peeked.Value(iso8583.NetworkManagementCode))
	switch code {
	case l.cfg.Codes.SignOff:
		if l.become(SignedOff, SigningOn, SignedOn) {
			s.wake()
		}
	case l.cfg.Codes.SignOn:
		if l.become(SigningOn, SignedOff) {
			s.wake()
		}
	}
	if !l.accepted[code] {
		s.handOn(UnknownRequest, mti, body, "network management code (DE 70) that this link does not serve")
	}
	select {
	case s.queue <- bytes.Clone(body):
	default:
		l.counts.answersDropped.Add(1)
		l.metrics.answersDropped.Inc()
	}
}

// answerRequests answers the peer's class 8 requests, in order and no faster than one each networkAnswerGap.
func (s *socket) answerRequests() {
	for {
		select {
		case <-s.done:
			return
		case body := <-s.queue:
			if err := s.answerRequest(body); err != nil {
				s.link.log.Warn("network management request not answered", zap.Error(err))
			}
		}
		select {
		case <-s.done:
			return
		case <-time.After(networkAnswerGap):
		}
	}
}

func (s *socket) answerRequest(body []byte) error {
	l := s.link
	var peeked iso8583.Peeked
	if err := l.spec.Peek(body, &peeked); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	response := l.spec.NewMessage(peeked.MTI().Response())
	code := responseApproved
	if !l.accepted[string(peeked.Value(iso8583.NetworkManagementCode))] {
		code = responseFunctionNotSupported
	}
	err := response.Set(iso8583.ResponseCode, code)
	for _, e := range l.cfg.AnswerElements {
		if peeked.Has(e) {
			err = errors.Join(err, response.Set(e, string(peeked.Value(e))))
		}
	}
	if err != nil {
		return fmt.Errorf("build response: %w", err)
	}
	encoded, err := l.spec.Encode(response)
	if err != nil {
		return fmt.Errorf("encode response: %w", err)
	}
	frame, err := l.framing.Append(nil, encoded)
	if err != nil {
		return fmt.Errorf("frame response: %w", err)
	}
	deadline := time.Now().Add(l.cfg.WriteTimeout.Std())
	if err := s.lockWrites(context.Background(), deadline); err != nil {
		return err
	}
	defer s.unlockWrites()
	s.write(frame, response.MTI(), deadline)
	return nil
}
