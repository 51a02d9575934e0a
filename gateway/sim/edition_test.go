package sim

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// peer1993 is a client of a scheme of the 1993 edition. Its messages are written down in full as text, since the stock library has no
// table of that edition: message type, bitmap, elements.
type peer1993 struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	spec *iso8583.Spec
	fr   *iso8583.Framing
}

func dial1993(t *testing.T, card *Card, cfg CardConfig) *peer1993 {
	t.Helper()
	conn, err := net.Dial("tcp", card.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	spec, err := cfg.Spec.Build()
	if err != nil {
		t.Fatal(err)
	}
	framing, err := cfg.Framing.Build()
	if err != nil {
		t.Fatal(err)
	}
	return &peer1993{t: t, conn: conn, r: bufio.NewReader(conn), spec: spec, fr: framing}
}

func (p *peer1993) write(body []byte) {
	p.t.Helper()
	frame, err := p.fr.Append(nil, body)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.conn.Write(frame); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer1993) read() (*iso8583.Message, []byte) {
	p.t.Helper()
	if err := p.conn.SetReadDeadline(time.Now().Add(answerWait)); err != nil {
		p.t.Fatal(err)
	}
	body, err := p.fr.Read(p.r, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	m, err := p.spec.Decode(body)
	if err != nil {
		p.t.Fatal(err)
	}
	return m, body
}

// ask sends a message of the codec's and gives the answer.
func (p *peer1993) ask(mti string, f fields) fields {
	p.t.Helper()
	p.send(mti, f)
	m, _ := p.read()
	got := fields{0: m.MTI().String()}
	for _, e := range m.Elements() {
		got[int(e)] = m.Get(e)
	}
	return got
}

func (p *peer1993) send(mti string, f fields) {
	p.t.Helper()
	parsed, err := iso8583.ParseMTI(mti)
	if err != nil {
		p.t.Fatal(err)
	}
	m := p.spec.NewMessage(parsed)
	for number, value := range f {
		if err := m.Set(iso8583.Element(number), value); err != nil {
			p.t.Fatal(err)
		}
	}
	body, err := p.spec.Encode(m)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(body)
}

// purchase1993 is a request of 1993; its times are DE 12.
func purchase1993(stan int, minor int64) fields {
	return fields{2: visaPAN, 3: "000000", 4: fmt.Sprintf("%012d", minor), 11: fmt.Sprintf("%06d", stan), 12: "260102030405", 22: "210101210120",
		24: "100", 26: "5411", 32: "12345", 37: fmt.Sprintf("%012d", stan), 41: "TERM0001", 42: "MERCHANT0000001", 49: "978"}
}

// about1993 is a message about another one, by DE 56, with a function code.
func about1993(stan int, mti string, of int, minor int64, function string) fields {
	f := purchase1993(of, minor)
	f[11], f[24] = fmt.Sprintf("%06d", stan), function
	f[56] = fmt.Sprintf("%s%06d260102030405%02d12345", mti, of, 5)
	return f
}

func start1993(t *testing.T) (*Card, *peer1993) {
	t.Helper()
	var cfg CardConfig
	card, _ := start(t, func(c *CardConfig) {
		c.Spec.Dialect = iso8583.Dialect1993ASCII
		c.Spec.Bitmap = iso8583.BitmapHex
		cfg = *c
	})
	p := dial1993(t, card, cfg)
	if got := p.ask("1804", fields{11: "000900", 12: "260102030405", 24: "801"}); got[0] != "1814" || got[39] != "800" || got[24] != "801" {
		t.Fatalf("sign-on: %v", got)
	}
	return card, p
}

func TestEdition1993(t *testing.T) {
	t.Parallel()
	card, p := start1993(t)
	got := p.ask("1100", purchase1993(1, 2500))
	if got[0] != "1110" || got[39] != "000" || len(got[38]) != 6 || got[12] != "260102030405" || got[24] != "" {
		t.Errorf("answer: %v", got)
	}
	completion := about1993(10, "1100", 1, 700, "201")
	completion[38] = got[38]
	for _, mti := range []string{"1220", "1221"} {
		if got := p.ask(mti, completion); got[0] != "1230" || got[39] != "000" {
			t.Errorf("%s: %v", mti, got)
		}
	}
	part := about1993(20, "1100", 1, 1500, "401")
	part[30] = fmt.Sprintf("%012d%012d", 2500, 0)
	for _, mti := range []string{"1420", "1421"} {
		if got := p.ask(mti, part); got[0] != "1430" || got[39] != "400" || got[56] != part[56] {
			t.Errorf("%s: %v", mti, got)
		}
	}
	key := HoldKey{MTI: 0x1100, STAN: "000001", TransmissionDateTime: "260102030405", AcquirerID: "00000012345", ForwarderID: "00000000000"}
	h := card.Holds()[key]
	if h.HeldMinor != 800 || h.PostedMinor != 700 || h.ReversedMinor != 1000 || h.Reversed || h.ResponseCode != "000" {
		t.Errorf("hold: %+v", h)
	}
	if got := p.ask("1420", about1993(21, "1220", 10, 700, "400")); got[39] != "914" {
		t.Errorf("reversal of a completion under another DE 37 than its own is about: %v", got)
	}
	if got := p.ask("1420", about1993(22, "1100", 1, 2500, "400")); got[39] != "400" {
		t.Errorf("reversal: %v", got)
	}
	if got := card.Books().Totals()["978"]; got != (Totals{PostedMinor: 700, CapturedMinor: 700, ReversedMinor: 1800}) {
		t.Errorf("totals: %+v", got)
	}
	for minor, code := range map[int64]string{1005: "100", 1066: "907", 1069: "699", 1010: "002"} {
		got := p.ask("1100", purchase1993(int(minor), minor))
		if got[39] != code || (code == "002") != (got[4] == "000000000505" && got[30] == "000000001010000000000000") {
			t.Errorf("%d: %v", minor, got)
		}
	}
	if got := p.ask("1200", purchase1993(50, 300)); got[0] != "1210" || got[39] != "000" {
		t.Errorf("financial request: %v", got)
	}
	if got := p.ask("1420", about1993(51, "1100", 99, 300, "400")); got[39] != "914" {
		t.Errorf("unknown original: %v", got)
	}
	if got := card.Find(Query{Original: key, Direction: In}); len(got) != 6 || got[3].FunctionCode != "401" {
		t.Errorf("records about the original: %+v", got)
	}
}

// TestPartialReversal1993NeedsTheApprovedAmount sends DE 30 wrong, and not at all.
func TestPartialReversal1993NeedsTheApprovedAmount(t *testing.T) {
	t.Parallel()
	card, p := start1993(t)
	p.ask("1100", purchase1993(1, 2500))
	part := about1993(20, "1100", 1, 1500, "401")
	if got := p.ask("1420", part); got[39] != "904" {
		t.Errorf("without DE 30: %v", got)
	}
	part[11], part[30] = "000021", fmt.Sprintf("%012d%012d", 2400, 0)
	if got := p.ask("1420", part); got[39] != "904" || card.Counts().Violations != 2 {
		t.Errorf("with a wrong DE 30: %v", got)
	}
	if got := card.Books().Totals()["978"]; got != (Totals{HeldMinor: 2500}) {
		t.Errorf("totals: %+v", got)
	}
}

// TestBytesOf1993 holds one exchange against bytes that were put together by hand.
func TestBytesOf1993(t *testing.T) {
	t.Parallel()
	_, p := start1993(t)
	// DE 2, 3, 4, 11, 12, 24, 32, 37, 41, 49
	p.write([]byte("1100" + "7030010108808000" + "16" + visaPAN + "000000" + "000000002500" + "000001" + "260102030405" + "100" + "05" + "12345" +
		"000000000001" + "TERM0001" + "978"))
	_, body := p.read()
	// DE 2, 3, 4, 11, 12, 32, 37, 38, 39, 41, 49
	want := "1110" + "703000010E808000" + "16" + visaPAN + "000000" + "000000002500" + "000001" + "260102030405" + "05" + "12345" +
		"000000000001" + "000001" + "000" + "TERM0001" + "978"
	if string(body) != want {
		t.Errorf("answer\n%q, want\n%q", body, want)
	}
}

func TestCutoverOf1993(t *testing.T) {
	t.Parallel()
	card, p := start1993(t)
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- card.Cutover(ctx, time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)) }()
	m, _ := p.read()
	if m.MTI() != 0x1804 || m.Get(iso8583.FunctionCode) != "821" || m.Get(28) != "261231" || len(m.Get(12)) != 12 {
		t.Errorf("notice: %v", m)
	}
	p.send("1814", fields{7: m.Get(7), 11: m.Get(11), 12: m.Get(12), 24: "821", 39: "800"})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTPDUIsSwapped answers every request to the addresses it came from.
func TestTPDUIsSwapped(t *testing.T) {
	t.Parallel()
	for received, want := range map[string]string{iso8583.TPDUSwapped: "6000000003", iso8583.TPDUAny: "6000000003"} {
		card, _ := start(t, func(c *CardConfig) {
			c.Framing.TPDU = iso8583.TPDUConfig{Request: "6000030000", Received: received}
		})
		conn, err := net.Dial("tcp", card.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		tpdu, err := hex.DecodeString("6000030000")
		if err != nil {
			t.Fatal(err)
		}
		plain := packed(t, "0800", fields{70: "301", 11: "000001"})[2:]
		frame := slices.Concat([]byte{0, byte(len(plain))}, tpdu, plain)
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 7)
		err = errors.Join(conn.SetReadDeadline(time.Now().Add(answerWait)), readAll(conn, answer))
		if err != nil || hex.EncodeToString(answer[2:]) != want {
			t.Errorf("%s: %x, %v", received, answer, err)
		}
	}
}

func readAll(conn net.Conn, into []byte) error {
	for len(into) > 0 {
		n, err := conn.Read(into)
		if err != nil {
			return err
		}
		into = into[n:]
	}
	return nil
}
