package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/goleak"
)

// patience is how long a test waits for what must happen; only a failing test waits that long.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testSpec is the peers' own copy of what the links under test speak.
var testSpec, testFraming = func() (*iso8583.Spec, *iso8583.Framing) {
	cfg := DefaultConfig()
	spec, specErr := cfg.Spec.Build()
	framing, framingErr := cfg.Framing.Build()
	if err := errors.Join(specErr, framingErr); err != nil {
		panic(err)
	}
	return spec, framing
}()

// testConfig is a profile with times short enough for tests and long enough for a busy machine.
func testConfig(address string) Config {
	cfg := DefaultConfig()
	cfg.Address = address
	cfg.ReconnectMin = configs.Duration(10 * time.Millisecond)
	cfg.ReconnectMax = configs.Duration(100 * time.Millisecond)
	cfg.MaxPending = 4096
	return cfg
}

// conn is the peer's side of one connection.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func newConn(nc net.Conn) *conn { return &conn{nc, bufio.NewReader(nc)} }

// read gives the next message, skipping keep-alives.
func (c *conn) read() (*iso8583.Message, error) {
	for {
		body, err := testFraming.Read(c.r, nil)
		if err != nil {
			return nil, err
		}
		if len(body) > 0 {
			return testSpec.Decode(body)
		}
	}
}

// write sends messages glued together.
func (c *conn) write(messages ...*iso8583.Message) error {
	var stream []byte
	for _, m := range messages {
		stream = append(stream, framed(m)...)
	}
	_, err := c.Write(stream)
	return err
}

// signOn takes the link's sign-on and approves it.
func (c *conn) signOn() error {
	m, err := c.read()
	if err != nil {
		return err
	}
	if m.MTI() != iso8583.MTINetworkManagementRequest || m.Get(iso8583.NetworkManagementCode) != "001" {
		return fmt.Errorf("expected a sign-on, got %s", m.Image())
	}
	return c.write(response(m, "00"))
}

// serve signs on and gives every further message to answer, whose result is written; network management is approved by itself.
func (c *conn) serve(answer func(*iso8583.Message) []*iso8583.Message) {
	for {
		m, err := c.read()
		if err != nil {
			return
		}
		answers := []*iso8583.Message{response(m, "00")}
		if m.MTI().Class() != 8 {
			answers = answer(m)
		}
		if err := c.write(answers...); err != nil {
			return
		}
	}
}

func approve(m *iso8583.Message) []*iso8583.Message { return []*iso8583.Message{response(m, "00")} }

// silence answers no financial message.
func silence(*iso8583.Message) []*iso8583.Message { return nil }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func framed(m *iso8583.Message) []byte {
	body, err := testSpec.Encode(m)
	must(err)
	frame, err := testFraming.Append(nil, body)
	must(err)
	return frame
}

// response answers a request with a response code, repeating what identifies it.
func response(request *iso8583.Message, code string) *iso8583.Message {
	m := testSpec.NewMessage(request.MTI().Response())
	for _, e := range []iso8583.Element{7, 11, 37, 41, 70} {
		if request.Has(e) {
			must(m.Set(e, request.Get(e)))
		}
	}
	must(m.Set(iso8583.ResponseCode, code))
	return m
}

// request makes a financial request that is told apart by STAN and terminal.
func request(mti iso8583.MTI, stan int, terminal string) *iso8583.Message {
	m := testSpec.NewMessage(mti)
	must(m.Set(iso8583.PAN, "4111111111111111"))
	must(m.Set(iso8583.ProcessingCode, "000000"))
	must(m.Set(iso8583.AmountTransaction, "000000001050"))
	must(m.Set(iso8583.TransmissionDateTime, "0102030405"))
	must(m.Set(iso8583.STAN, fmt.Sprintf("%06d", stan)))
	must(m.Set(iso8583.RRN, fmt.Sprintf("%012d", stan)))
	must(m.Set(iso8583.TerminalID, fmt.Sprintf("%-8s", terminal)))
	return m
}

func encoded(m *iso8583.Message) []byte {
	body, err := testSpec.Encode(m)
	must(err)
	return body
}

func decoded(t testing.TB, body []byte) *iso8583.Message {
	t.Helper()
	m, err := testSpec.Decode(body)
	if err != nil {
		t.Fatalf("decode answer: %v", err)
	}
	return m
}

// peer listens on loopback and runs serve for each connection, in a goroutine that ends with the test.
type peer struct {
	net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex // protects the following
	conns []net.Conn
}

func startPeer(t testing.TB, serve func(*conn)) *peer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{Listener: listener}
	p.wg.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, nc)
			p.mu.Unlock()
			p.wg.Go(func() {
				defer nc.Close()
				serve(newConn(nc))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		for _, nc := range p.conns {
			nc.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *peer) address() string { return p.Addr().String() }

// startLink runs a link until the test ends.
func startLink(t testing.TB, cfg Config, opts Options) *Link {
	t.Helper()
	l, stop := runLink(t, cfg, opts)
	t.Cleanup(stop)
	return l
}

// runLink runs a link until stop is called, which waits for its end.
func runLink(t testing.TB, cfg Config, opts Options) (l *Link, stop func()) {
	t.Helper()
	l, err := New("test", cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l, run(t, l)
}

// run runs a link that was made already until stop is called, which waits for its end.
func run(t testing.TB, l *Link) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not end")
		}
	})
}

// startSignedOn is a link to a peer, ready for traffic.
func startSignedOn(t testing.TB, cfg Config, opts Options) *Link {
	t.Helper()
	l := startLink(t, cfg, opts)
	waitState(t, l, SignedOn)
	return l
}

// startWith is a link with the test profile, signed on to a peer that answers financial requests with answer.
func startWith(t testing.TB, answer func(*iso8583.Message) []*iso8583.Message, opts Options) *Link {
	t.Helper()
	p := startPeer(t, func(c *conn) { c.serve(answer) })
	return startSignedOn(t, testConfig(p.address()), opts)
}

func waitState(t testing.TB, l *Link, want State) {
	t.Helper()
	eventually(t, "link is "+string(want), func() bool { return l.State() == want })
}

// eventually polls; sockets leave nothing better where the condition is the other side's.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// exchange calls with a timeout from now.
func exchange(l *Link, m *iso8583.Message, timeout time.Duration) ([]byte, error) {
	return l.Exchange(context.Background(), Call{Body: encoded(m), Deadline: time.Now().Add(timeout)})
}

// journal collects what is handed on.
type journal struct {
	mu      sync.Mutex
	entries []Unmatched
}

func (j *journal) note(u Unmatched) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, u)
}

func (j *journal) all() []Unmatched {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]Unmatched(nil), j.entries...)
}

// wait gives the first n entries, once there are as many.
func (j *journal) wait(t testing.TB, n int) []Unmatched {
	t.Helper()
	eventually(t, fmt.Sprintf("%d messages handed on", n), func() bool { return len(j.all()) >= n })
	return j.all()[:n]
}

// drain reads until the connection ends, so that the other side never blocks on us.
func drain(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// requireUnknown fails unless the error leaves the outcome unknown.
func requireUnknown(t testing.TB, err error) {
	t.Helper()
	if err == nil || NotSent(err) {
		t.Fatalf("error %v, want an unknown outcome", err)
	}
}

func requireLost(t testing.TB, err error, want DownReason) {
	t.Helper()
	requireUnknown(t, err)
	lost, ok := errors.AsType[*LinkLostError](err)
	if !ok || lost.Reason != want {
		t.Fatalf("error %v, want the link lost by %s", err, want)
	}
}

func requireNotSent(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || !NotSent(err) {
		t.Fatalf("error %v, want %v and certainly not sent", err, want)
	}
}
