package sim

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/prefix"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// answerWait is how long a test waits for what must come.
	answerWait = 5 * time.Second
	visaPAN    = "4111111111111111"
	otherPAN   = "5555555555554444"
)

// peerSpec is the 1987 dialect on the stock library, written down apart from the project's own table, so that a fault in that
// table cannot be on both sides of the socket.
var peerSpec = &moov.MessageSpec{Name: "peer", Fields: map[int]field.Field{
	0: field.NewString(&field.Spec{Length: 4, Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed}),
	1: field.NewBitmap(&field.Spec{Length: 8, Enc: encoding.Binary, Pref: prefix.Binary.Fixed}),
	2: field.NewString(&field.Spec{Length: 19, Enc: encoding.ASCII, Pref: prefix.ASCII.LL}),
	3: fixed(6), 4: fixed(12), 7: fixed(10), 11: fixed(6), 12: fixed(6), 13: fixed(4), 14: fixed(4), 18: fixed(4), 22: fixed(3),
	15: fixed(4), 24: fixed(3),
	32: field.NewString(&field.Spec{Length: 11, Enc: encoding.ASCII, Pref: prefix.ASCII.LL}),
	37: fixed(12), 38: fixed(6), 39: fixed(2), 41: fixed(8), 42: fixed(15), 49: fixed(3), 70: fixed(3), 90: fixed(42), 95: fixed(42),
	54: field.NewString(&field.Spec{Length: 120, Enc: encoding.ASCII, Pref: prefix.ASCII.LLL}),
}}

func fixed(length int) field.Field {
	return field.NewString(&field.Spec{Length: length, Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed})
}

// start runs a scheme until the test's end; its log goes to the returned buffer.
func start(t *testing.T, change func(*CardConfig)) (*Card, *logBuffer) {
	t.Helper()
	cfg := DefaultCardConfig()
	cfg.LateAfter = 0
	if change != nil {
		change(&cfg)
	}
	log := &logBuffer{}
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(log), zap.DebugLevel)
	card, err := NewCard(cfg, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return card, log
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu   sync.Mutex // protects the following
	text strings.Builder
}

func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// peer is a client of the scheme on the stock library.
type peer struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, card *Card) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", card.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &peer{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// signedOn is a peer whose sign-on was accepted.
func signedOn(t *testing.T, card *Card) *peer {
	t.Helper()
	p := dial(t, card)
	if got := p.ask("0800", fields{70: "001", 11: "000900"}); got[39] != "00" || got[0] != "0810" || got[70] != "001" {
		t.Fatalf("sign-on answered %v", got)
	}
	return p
}

// fields are a message's data elements by number; 0 is the message type.
type fields map[int]string

func (p *peer) send(mti string, f fields) {
	p.t.Helper()
	p.raw(packed(p.t, mti, f))
}

// packed is a message's frame.
func packed(t testing.TB, mti string, f fields) []byte {
	t.Helper()
	m := moov.NewMessage(peerSpec)
	m.MTI(mti)
	if _, given := f[7]; !given {
		f[7] = "0102030405"
	}
	for number, value := range f {
		if err := m.Field(number, value); err != nil {
			t.Fatal(err)
		}
	}
	body, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(body))), body...)
}

func (p *peer) raw(data []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(data); err != nil {
		p.t.Fatal(err)
	}
}

// next reads one message within the wait.
func (p *peer) next(wait time.Duration) (fields, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	header := make([]byte, 2)
	if _, err := io.ReadFull(p.r, header); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint16(header))
	if _, err := io.ReadFull(p.r, body); err != nil {
		return nil, err
	}
	m := moov.NewMessage(peerSpec)
	if err := m.Unpack(body); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	f := fields{}
	for number := range m.GetFields() {
		value, err := m.GetString(number)
		if err != nil {
			return nil, err
		}
		if number != 1 {
			f[number] = value
		}
	}
	return f, nil
}

func (p *peer) read() fields {
	p.t.Helper()
	f, err := p.next(answerWait)
	if err != nil {
		p.t.Fatalf("read answer: %v", err)
	}
	return f
}

func (p *peer) ask(mti string, f fields) fields {
	p.t.Helper()
	p.send(mti, f)
	return p.read()
}

// nothingCame proves that no answer is on its way: answers keep their order, so an echo would come behind it.
func (p *peer) nothingCame() {
	p.t.Helper()
	if got := p.ask("0800", fields{70: "301", 11: "000901"}); got[0] != "0810" || got[11] != "000901" {
		p.t.Errorf("an answer came: %v", got)
	}
}

// ended waits for the connection's end and fails on a message.
func (p *peer) ended() {
	p.t.Helper()
	f, err := p.next(answerWait)
	if timeout := net.Error(nil); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		p.t.Errorf("the connection did not end: %v, %v", f, err)
	}
}

// purchase is an authorisation request over an amount in minor units.
func purchase(stan int, minor int64) fields {
	return fields{2: visaPAN, 3: "000000", 4: fmt.Sprintf("%012d", minor), 11: fmt.Sprintf("%06d", stan), 12: "030405", 13: "0102",
		22: "051", 32: "12345", 37: fmt.Sprintf("%012d", stan), 41: "TERM0001", 42: "MERCHANT0000001", 49: "978"}
}

// undo is the reversal of such a request.
func undo(stan int, minor int64) fields {
	f := purchase(stan, minor)
	delete(f, 22)
	f[90] = fmt.Sprintf("0100%06d0102030405%011d%011d", stan, 12345, 0)
	return f
}

// holdOf is the issuer's book of a request by its STAN.
func holdOf(t *testing.T, card *Card, stan int) Hold {
	t.Helper()
	key := HoldKey{MTI: 0x0100, STAN: fmt.Sprintf("%06d", stan), TransmissionDateTime: "0102030405", AcquirerID: "00000012345", ForwarderID: "00000000000"}
	h, known := card.Holds()[key]
	if !known {
		t.Fatalf("no hold for STAN %06d among %d", stan, len(card.Holds()))
	}
	return h
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(answerWait); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func hasRecord(card *Card, match func(Record) bool) bool {
	return slices.ContainsFunc(card.Journal(), match)
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
