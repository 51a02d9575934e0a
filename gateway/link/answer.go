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

// networkAnswerGap is the least time between two of our answers to class 8 requests, so that two ends which answer each other's
// echoes cannot keep each other busy.
const networkAnswerGap = 50 * time.Millisecond

// serve takes a class 8 request of the peer's. The reader calls it: what it changes holds before the next message is read, and the
// answer is left to answerRequests, since a reader that writes can be blocked by the peer.
func (s *socket) serve(mti iso8583.MTI, body []byte) {
	l := s.line
	code := string(s.peeked.AppendValue(nil, l.table.code))
	switch code {
	case "":
	case l.table.codes.SignOff:
		s.announced.Store(false)
		if l.become(SignedOff, SigningOn, SignedOn) {
			s.wake()
		}
	case l.table.codes.SignOn:
		if l.become(SigningOn, SignedOff) {
			s.wake()
		}
	case l.table.codes.Cutover:
		s.noteCutover()
	}
	if !l.table.serves(code) {
		s.handOn(UnknownRequest, mti, body, "network management code ("+l.table.code.String()+") that this link does not serve")
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
				s.line.log.Warn("network management request not answered", zap.Error(err))
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
	l := s.line
	var peeked iso8583.Peeked
	if err := l.spec.Peek(body, &peeked); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	response := l.spec.NewMessage(l.spec.ResponseTo(peeked.MTI()))
	code := l.table.approved[0]
	if !l.table.serves(string(peeked.AppendValue(nil, l.table.code))) {
		code = l.table.notSupported
	}
	err := response.Set(iso8583.ResponseCode, code)
	for _, e := range l.table.answer {
		if peeked.Has(e) {
			err = errors.Join(err, response.Set(e, string(peeked.AppendValue(nil, e))))
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
	var t turn
	s.writes.enter(&t, true)
	defer s.writes.leave(&t)
	if err := s.awaitTurn(context.Background(), &t, deadline); err != nil {
		return err
	}
	s.write(frame, response.MTI(), deadline)
	return nil
}
