package link

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// hostDialect is how the peer of a test speaks: one edition's message types, network management and response codes.
type hostDialect struct {
	spec                            iso8583.SpecConfig
	network                         NetworkDialect
	networkRequest                  iso8583.MTI
	authorization                   iso8583.MTI
	code, date                      iso8583.Element
	signOn, signOff, echo, cutover  string
	approved, working, unsupported  string
	businessDate, otherBusinessDate string
}

func iso1987Host() hostDialect {
	return hostDialect{
		spec: dialectSpec(iso8583.Dialect1987ASCII), network: NetworkISO1987, networkRequest: 0x0800, authorization: 0x0100, code: 70, date: 15,
		signOn: "001", signOff: "002", echo: "301", cutover: "201", approved: "00", working: "09", unsupported: "40",
		businessDate: "1202", otherBusinessDate: "1203",
	}
}

func mdsHost() hostDialect {
	h := iso1987Host()
	h.network, h.signOn, h.signOff, h.echo, h.cutover = NetworkMDS, "061", "062", "270", ""
	return h
}

func iso1993Host() hostDialect {
	return hostDialect{
		spec: dialectSpec(iso8583.Dialect1993ASCII), network: NetworkISO1993, networkRequest: 0x1804, authorization: 0x1100, code: 24, date: 28,
		signOn: "801", signOff: "802", echo: "831", cutover: "821", approved: "800", working: "923", unsupported: "115",
		businessDate: "261202", otherBusinessDate: "261203",
	}
}

// eachDialect runs a test in both editions and in every coding.
func eachDialect(t *testing.T, test func(t *testing.T, h hostDialect)) {
	t.Helper()
	for _, dialect := range iso8583.Dialects() {
		cfg := dialectSpec(dialect)
		spec, err := cfg.Build()
		must(err)
		h := iso1987Host()
		if spec.Edition() == iso8583.Edition1993 {
			h = iso1993Host()
		}
		h.spec, h.network = cfg, "" // the edition's
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// config is a profile for the host, with the default times, and the spec it was made from.
func (h hostDialect) config() (Config, *iso8583.Spec) {
	cfg := bubbleConfig()
	cfg.Spec, cfg.Network.Dialect = h.spec, h.network
	spec, err := cfg.Spec.Build()
	must(err)
	return cfg, spec
}

// bubblePeer is the peer in a bubble: it approves what is asked in class 8, notes everything it receives and leaves the rest to the test.
type bubblePeer struct {
	hostDialect
	spec *iso8583.Spec

	mu       sync.Mutex // protects the following
	conn     *conn
	received []*iso8583.Message
	mute     map[string]bool // codes of class 8 requests that are not answered
	refuse   map[string]string
}

// startBubble runs a link to a new host inside a bubble; change may alter the profile.
func startBubble(t *testing.T, h hostDialect, opts Options, change func(*Config)) (*bubblePeer, *Link, func()) {
	t.Helper()
	cfg, spec := h.config()
	if change != nil {
		change(&cfg)
	}
	p := &bubblePeer{hostDialect: h, spec: spec, mute: map[string]bool{}, refuse: map[string]string{}}
	opts.Dial = pipeTo(p.serve)
	l, stop := runLink(t, cfg, opts)
	t.Cleanup(stop) // a bubble with a running link never ends
	synctest.Wait()
	return p, l, stop
}

func (p *bubblePeer) serve(c *conn) {
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	for {
		body, err := testFraming.Read(c.r, nil)
		if err != nil {
			return
		}
		m, err := p.spec.Decode(body)
		must(err)
		p.mu.Lock()
		p.received = append(p.received, m)
		code := m.Get(p.code)
		answer := p.approved
		if other, ok := p.refuse[code]; ok {
			answer = other
		}
		silent := p.mute[code] || m.MTI().Class() != networkClass || p.spec.IsResponse(m.MTI())
		p.mu.Unlock()
		if !silent {
			p.sendOn(c, p.answer(m, answer))
		}
	}
}

// answer repeats what identifies a request, or only the given elements of it.
func (p *bubblePeer) answer(request *iso8583.Message, code string, elements ...iso8583.Element) *iso8583.Message {
	if elements == nil {
		elements = []iso8583.Element{7, 11, 24, 37, 41, 70}
	}
	m := p.spec.NewMessage(p.spec.ResponseTo(request.MTI()))
	for _, e := range elements {
		if request.Has(e) {
			must(m.Set(e, request.Get(e)))
		}
	}
	must(m.Set(iso8583.ResponseCode, code))
	return m
}

// ask makes a class 8 request of the host's own.
func (p *bubblePeer) ask(mti iso8583.MTI, code string) *iso8583.Message {
	m := p.spec.NewMessage(mti)
	must(m.Set(iso8583.TransmissionDateTime, "1201233000"))
	must(m.Set(iso8583.STAN, "000777"))
	must(m.Set(p.code, code))
	return m
}

// send writes on the newest connection; a lost one loses what is written.
func (p *bubblePeer) send(messages ...*iso8583.Message) {
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	p.sendOn(c, messages...)
}

func (p *bubblePeer) sendOn(c *conn, messages ...*iso8583.Message) {
	for _, m := range messages {
		body, err := p.spec.Encode(m)
		must(err)
		frame, err := testFraming.Append(nil, body)
		must(err)
		_, _ = c.Write(frame)
	}
}

// keepSilent leaves class 8 requests with the code unanswered from here on.
func (p *bubblePeer) keepSilent(code string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute[code] = true
}

// refuseWith answers class 8 requests with the code by a response code from here on.
func (p *bubblePeer) refuseWith(code, responseCode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse[code] = responseCode
}

// hangUp ends the newest connection.
func (p *bubblePeer) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn.Close()
}

func (p *bubblePeer) all() []*iso8583.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*iso8583.Message(nil), p.received...)
}

// count is how many messages of the type came, with the code where it is not "".
func (p *bubblePeer) count(mti iso8583.MTI, code string) int {
	n := 0
	for _, m := range p.all() {
		if m.MTI() == mti && (code == "" || m.Get(p.code) == code) {
			n++
		}
	}
	return n
}

// last is the newest message of the type.
func (p *bubblePeer) last(t *testing.T, mti iso8583.MTI) *iso8583.Message {
	t.Helper()
	all := p.all()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].MTI() == mti {
			return all[i]
		}
	}
	t.Fatalf("no %s was received", mti)
	return nil
}

// purchase makes a financial request of the host's edition.
func (p *bubblePeer) purchase(stan int, terminal string) *iso8583.Message {
	m := p.spec.NewMessage(p.authorization)
	must(m.Set(iso8583.PAN, "4111111111111111"))
	must(m.Set(iso8583.AmountTransaction, "000000001050"))
	must(m.Set(iso8583.TransmissionDateTime, "0102030405"))
	must(m.Set(iso8583.STAN, fmt.Sprintf("%06d", stan)))
	must(m.Set(iso8583.RRN, fmt.Sprintf("%012d", stan)))
	must(m.Set(iso8583.TerminalID, fmt.Sprintf("%-8s", terminal)))
	return m
}

// start begins an exchange that may wait until latest for interim answers.
func (p *bubblePeer) start(t *testing.T, l *Link, m *iso8583.Message, timeout, latest time.Duration) <-chan outcome {
	body, err := p.spec.Encode(m)
	must(err)
	now := time.Now()
	c := Call{Body: body, Deadline: now.Add(timeout)}
	if latest != 0 {
		c.Latest = now.Add(latest)
	}
	result := make(chan outcome, 1)
	go func() {
		body, err := l.Exchange(t.Context(), c)
		result <- outcome{body, err}
	}()
	synctest.Wait()
	return result
}

// code gives DE 39 of an exchange's answer.
func (p *bubblePeer) codeOf(t *testing.T, o outcome) string {
	t.Helper()
	if o.err != nil {
		t.Fatal(o.err)
	}
	m, err := p.spec.Decode(o.body)
	must(err)
	return m.Get(iso8583.ResponseCode)
}

func TestNetworkManagementOfEachDialect(t *testing.T) {
	t.Parallel()
	for _, h := range []hostDialect{iso1987Host(), mdsHost(), iso1993Host()} {
		t.Run(string(h.network), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, l, stop := startBubble(t, h, Options{}, nil)
				if l.State() != SignedOn || p.count(h.networkRequest, h.signOn) != 1 {
					t.Errorf("link is %s after %d sign-ons", l.State(), p.count(h.networkRequest, h.signOn))
				}
				time.Sleep(31 * time.Second)
				if n := p.count(h.networkRequest, h.echo); n != 1 {
					t.Errorf("%d echoes on an idle line", n)
				}
				for _, test := range []struct {
					mti        iso8583.MTI
					code, want string
				}{
					{h.networkRequest, h.echo, h.approved},
					{h.networkRequest | 1, h.echo, h.approved}, // the same again
					{h.networkRequest, h.signOn, h.approved},
					{h.networkRequest, "161", h.unsupported}, // a key change that nobody makes
				} {
					before := p.count(h.networkRequest.Response(), "")
					p.send(p.ask(test.mti, test.code))
					time.Sleep(2 * networkAnswerGap)
					m := p.last(t, h.networkRequest.Response())
					if p.count(h.networkRequest.Response(), "") != before+1 || m.Get(39) != test.want || m.Get(h.code) != test.code || m.Get(11) != "000777" {
						t.Errorf("%s with code %s answered by %s", test.mti, test.code, m.Image())
					}
				}
				stop()
				if p.count(h.networkRequest, h.signOff) != 1 {
					t.Error("no sign-off")
				}
			})
		})
	}
}

// TestS62_AnswersGoUnderTheProfilesType: a host that pairs its function digits in its own way.
func TestS62_AnswersGoUnderTheProfilesType(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1993Host()
		h.spec.ResponseMTIs = map[string]string{"1804": "1824", "1400": "1480"}
		p, l, stop := startBubble(t, h, Options{}, nil)
		requireState(t, l, SignedOn, "") // by an 1824
		for _, mti := range []iso8583.MTI{0x1804, 0x1805} {
			p.send(p.ask(mti, h.echo))
			time.Sleep(2 * networkAnswerGap)
		}
		if n := p.count(0x1824, h.echo); n != 2 {
			t.Errorf("%d of 2 echoes answered by 1824", n)
		}
		m := p.spec.NewMessage(0x1400)
		for _, e := range []iso8583.Element{7, 11, 37, 41} {
			must(m.Set(e, p.purchase(1, "T1").Get(e)))
		}
		result := p.start(t, l, m, time.Minute, 0)
		p.send(p.reply(m, "REVERS"))
		p.requireAnswered(t, result, "REVERS")
		stop()
	})
}

func TestNetworkProfileOverridesItsDialect(t *testing.T) {
	t.Parallel()
	h := mdsHost()
	h.networkRequest, h.echo, h.approved = 0x0820, "271", "01"
	h.spec.MTIs = []string{"0100", "0110", "0820", "0821", "0830"}
	synctest.Test(t, func(t *testing.T) {
		p, l, stop := startBubble(t, h, Options{}, func(c *Config) {
			c.Network.RequestMTI, c.Codes.Echo, c.Network.Approved = "0820", "271", []string{"01"}
			c.Network.ClockElements = map[iso8583.Element]string{12: "hhmmss", 13: "MMDD"}
			c.SignOn.Elements = map[iso8583.Element]string{33: "12345678"}
			c.Network.SignOffElements = map[iso8583.Element]string{33: "87654321"}
		})
		if l.State() != SignedOn {
			t.Fatalf("link is %s", l.State())
		}
		signOn := p.last(t, 0x0820)
		if signOn.Get(70) != "061" || signOn.Has(7) || len(signOn.Get(12)) != 6 || len(signOn.Get(13)) != 4 || signOn.Get(33) != "12345678" {
			t.Errorf("sign-on is %s", signOn.Image())
		}
		time.Sleep(31 * time.Second)
		if p.count(0x0820, "271") != 1 {
			t.Error("no echo with the profile's code")
		}
		stop()
		if signOff := p.last(t, 0x0820); signOff.Get(70) != "062" || signOff.Get(33) != "87654321" {
			t.Errorf("sign-off is %s", signOff.Image())
		}
	})
}

// TestS63: nine hours on an idle line and nine on a busy one.
func TestS63_EchoesOnlyOnAnIdleLineAndWithinTheirOwnNumberRange(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			p, l, stop := startBubble(t, h, Options{}, func(c *Config) { c.NetworkSTANs = STANRange{From: 900_001, To: 900_007} })
			for stan := range 20 { // a busy line needs no echo
				result := p.start(t, l, p.purchase(stan+1, "T1"), time.Second, 0)
				p.send(p.answer(p.last(t, h.authorization), h.approved))
				p.codeOf(t, <-result)
				time.Sleep(20 * time.Second)
			}
			if n := p.count(h.networkRequest, h.echo); n != 0 {
				t.Errorf("%d echoes on a busy line", n)
			}
			time.Sleep(5 * time.Minute)
			used := map[string]bool{}
			for _, m := range p.all() {
				if m.MTI() == h.networkRequest {
					used[m.Get(11)] = true
				}
			}
			for stan := range used {
				if stan < "900001" || stan > "900007" {
					t.Errorf("our own STAN %s is outside its range", stan)
				}
			}
			if len(used) != 7 {
				t.Errorf("%d numbers used of a range of 7, in %d echoes", len(used), p.count(h.networkRequest, h.echo))
			}
			stop()
		})
	})
}

func TestClass8AnswerWithoutCodeOrTerminalIsMatched(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		elements []iso8583.Element
		want     State
	}{
		"everything":       {[]iso8583.Element{7, 11, 41, 70}, SignedOn},
		"no code":          {[]iso8583.Element{7, 11, 41}, SignedOn},
		"no terminal":      {[]iso8583.Element{7, 11, 70}, SignedOn},
		"neither":          {[]iso8583.Element{11}, SignedOn},
		"nothing of a key": {[]iso8583.Element{7}, SigningOn},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := iso1987Host()
				var handedOn journal
				var p *bubblePeer
				cfg, spec := h.config()
				cfg.CorrelationNetwork = []iso8583.Element{11, 41, 70}
				cfg.SignOn.Elements = map[iso8583.Element]string{41: "TERM0001"}
				cfg.EchoElements = cfg.SignOn.Elements
				p = &bubblePeer{hostDialect: h, spec: spec}
				dial := pipeTo(func(c *conn) {
					m, err := c.read()
					if err != nil {
						return
					}
					p.conn = c
					p.send(p.answer(m, "00", test.elements...))
					drain(c)
				})
				l, stop := runLink(t, cfg, Options{Dial: dial, OnUnmatched: handedOn.note})
				synctest.Wait()
				if l.State() != test.want {
					t.Errorf("link is %s, want %s", l.State(), test.want)
				}
				if u := handedOn.all(); test.want == SigningOn && (len(u) != 1 || u[0].Kind != MissingKeyElement) {
					t.Errorf("handed on: %d messages", len(u))
				}
				stop()
			})
		})
	}
}

func TestClass8AnswerWithAForeignNumberIsNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		var handedOn journal
		p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
			c.CorrelationNetwork = []iso8583.Element{11, 70}
		})
		p.keepSilent(h.echo)
		time.Sleep(31 * time.Second)
		foreign := p.answer(p.last(t, 0x0800), "00", 7)
		must(foreign.Set(11, "000001"))
		if p.last(t, 0x0800).Get(11) == "000001" {
			must(foreign.Set(11, "000002"))
		}
		p.send(foreign)
		synctest.Wait()
		if u := handedOn.all(); len(u) != 1 || u[0].Kind != Late {
			t.Errorf("handed on: %v", len(u))
		}
		if n := l.Status().Pending; n != 1 {
			t.Errorf("%d calls pending, want the echo", n)
		}
		stop()
	})
}
