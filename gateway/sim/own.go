package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// heardAnswer takes an answer to a message of our own.
func (conn *connection) heardAnswer(m *iso8583.Message, body []byte) {
	v := verdict{note: "answer to our request"}
	if !conn.answered(m.Get(iso8583.STAN), m.Get(iso8583.ResponseCode)) {
		v = verdict{violation: "an answer to nothing we asked"}
	}
	conn.card.journal.message(In, conn, m, body, "", v)
}

// question is a request of our own that waits for its answer.
type question struct {
	answer   chan string // gets its DE 39
	signsOff bool
}

// answered ends the wait for an answer; false when nobody waits.
func (conn *connection) answered(stan, code string) bool {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	q, waiting := conn.asked[stan]
	if !waiting {
		return false
	}
	delete(conn.asked, stan)
	if q.signsOff && conn.signOn == peerSignedOn {
		conn.signOn = peerSignedOffByUs
	}
	q.answer <- code // has room for it
	return true
}

// forget gives up waiting for an answer: one that comes later answers nothing we asked.
func (conn *connection) forget(stan string) {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	delete(conn.asked, stan)
}

// ask sends a network management request; the channel gets DE 39 of its answer. There are never more than limit without one.
func (conn *connection) ask(code, note string, limit int, more map[iso8583.Element]string) (stan string, answer <-chan string, err error) {
	c, now := conn.card, time.Now().UTC()
	stan = c.nextSTAN()
	m := c.spec.NewMessage(c.wire.networkMTI)
	err = errors.Join(m.Set(iso8583.TransmissionDateTime, now.Format("0102150405")), m.Set(iso8583.STAN, stan), m.Set(c.wire.network.CodeElement, code))
	if c.wire.is1993 {
		err = errors.Join(err, m.Set(iso8583.TimeLocal, now.Format("060102150405")))
	}
	for e, value := range more {
		err = errors.Join(err, m.Set(e, value))
	}
	if err != nil {
		return "", nil, err
	}
	body, frame, err := c.frame(m)
	if err != nil {
		return "", nil, err
	}
	wait := make(chan string, 1)
	conn.mu.Lock()
	if len(conn.asked) >= limit {
		conn.mu.Unlock()
		return "", nil, fmt.Errorf("%d requests of ours without an answer", limit)
	}
	conn.asked[stan] = question{answer: wait, signsOff: code == c.wire.network.SignOff}
	conn.mu.Unlock()
	c.journal.message(Out, conn, m, body, "", verdict{note: note})
	conn.write(frame, pace{})
	return stan, wait, nil
}

// askEcho asks whether the peer lives.
func (conn *connection) askEcho(limit int) (stan string, answer <-chan string, err error) {
	return conn.ask(conn.card.wire.network.Echo, "our echo", limit, nil)
}

// askSignOff asks the peer to sign off. Financial traffic is taken until it has answered, since what is on the wire then cannot know.
func (conn *connection) askSignOff() (stan string, answer <-chan string, err error) {
	return conn.ask(conn.card.wire.network.SignOff, "our sign-off", maxEchoes, nil)
}

// askSignOn asks the peer to sign on, and takes its traffic from then on: a peer may do that with a sign-on of its own, or by its answer.
func (conn *connection) askSignOn() (stan string, answer <-chan string, err error) {
	conn.setSignOn(peerSignedOn)
	return conn.ask(conn.card.wire.network.SignOn, "our sign-on", maxEchoes, nil)
}

// askCutover tells the peer of a new business date, as DE 15 has it (MMDD), or DE 28 of 1993 (YYMMDD).
func (conn *connection) askCutover(date time.Time) (stan string, answer <-chan string, err error) {
	w, layout := conn.card.wire, "0102"
	if w.is1993 {
		layout = "060102"
	}
	return conn.ask(w.network.Cutover, "our cutover", maxEchoes, map[iso8583.Element]string{w.network.BusinessDateElement: date.Format(layout)})
}

// approves tells whether DE 39 of an answer to a network management request means yes.
func (w *wire) approves(code string) bool {
	return code == w.code(networkClass, approved) || isApproval(code)
}

// echoForEver sends an echo test each interval until the connection ends.
func (conn *connection) echoForEver() {
	for pause(conn.closed, conn.card.cfg.EchoInterval.Std()) {
		if conn.card.dropsAll() {
			continue
		}
		if _, _, err := conn.askEcho(maxEchoes); err != nil {
			conn.card.journal.event(conn.number, "echo not sent", err.Error())
		}
	}
}

// keepAliveForEver sends a frame without a message each interval until the connection ends.
func (conn *connection) keepAliveForEver() {
	for pause(conn.closed, conn.card.cfg.KeepAliveInterval.Std()) {
		conn.write(conn.card.keepAlive(), pace{})
	}
}

// hangUpInTime ends the connection after the time that the profile gives every one.
func (conn *connection) hangUpInTime() {
	if pause(conn.closed, conn.card.cfg.HangUpAfter.Std()) {
		conn.close("closed by the scheme: its time is over")
	}
}

// keepAlive is a frame without a message: a length of zero, whatever the length counts.
func (c *Card) keepAlive() []byte {
	switch c.cfg.Framing.Length {
	case iso8583.LengthASCII4:
		return []byte("0000")
	case iso8583.LengthBinary4, iso8583.LengthVML:
		return make([]byte, 4)
	}
	return make([]byte, 2)
}

// besides does what comes with a message besides its answer: what its rule says, and what the profile counts.
func (conn *connection) besides(m *iso8583.Message, r ruling) {
	c := conn.card
	if r.action.Also != "" {
		conn.also(r.action)
	}
	conn.mu.Lock()
	conn.heard++
	heard := conn.heard
	conn.mu.Unlock()
	if every := c.cfg.HangUpEvery; every > 0 && heard%every == 0 {
		conn.hangUpAfterAnswer()
	}
	if m.MTI().Class() == networkClass || c.cfg.CutoverEvery == 0 {
		return
	}
	c.mu.Lock()
	c.financial++
	due := c.financial%c.cfg.CutoverEvery == 0
	c.mu.Unlock()
	if due {
		c.announceCutover()
	}
}

// also does what a rule wants to happen on the connection behind the answer.
func (conn *connection) also(a Action) {
	c, count := conn.card, max(1, a.Times)
	var err error
	switch a.Also {
	case AlsoCutover:
		c.announceCutover()
	case AlsoSignOff:
		_, _, err = conn.askSignOff()
	case AlsoSignOn:
		_, _, err = conn.askSignOn()
	case AlsoStall:
		conn.stall(a.For.Std())
	case AlsoKeepAlive:
		for range count {
			conn.write(c.keepAlive(), pace{})
		}
	case AlsoEchoStorm:
		for range count {
			if _, _, err = conn.askEcho(maxStorm); err != nil {
				break
			}
		}
	case AlsoBounce:
		if _, _, err = conn.askSignOff(); err == nil {
			conn.after(a.For.Std(), func() {
				if _, _, err := conn.askSignOn(); err != nil {
					c.journal.event(conn.number, "sign-on not sent", err.Error())
				}
			})
		}
	}
	if err != nil {
		c.journal.event(conn.number, a.Also+" not done: "+err.Error(), "")
	}
}

// announceCutover begins the next business date and tells every peer. It waits for no answer.
func (c *Card) announceCutover() {
	c.mu.Lock()
	c.date = c.date.AddDate(0, 0, 1)
	date := c.date
	c.mu.Unlock()
	for _, conn := range c.everyone() {
		if _, _, err := conn.askCutover(date); err != nil {
			c.journal.event(conn.number, "cutover not sent", err.Error())
		}
	}
}
