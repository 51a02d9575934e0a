package commit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// fate is what the proxy does to one transaction.
type fate int

const (
	pass fate = iota
	// loseTransaction cuts the line before COMMIT reaches the server.
	loseTransaction
	// loseAnswer cuts the line when the server has answered COMMIT.
	loseAnswer
	// delay cuts the client's line and keeps the whole transaction from the server until the test releases it.
	delay
	// delayCommit does the same, with everything before COMMIT delivered at once.
	delayCommit
	// swallow keeps the server's answers back, the line stays up.
	swallow
	// answerRollback turns the server's COMMIT into a ROLLBACK.
	answerRollback
	// warn puts a warning before the answer to COMMIT.
	warn
	// fail answers BEGIN as a pooler does that has lost its server, which meanwhile commits.
	fail
)

const cancelRequestCode = 80877102

// proxy stands between client and server, reads the protocol and decides the fate of each transaction by its number.
type proxy struct {
	listener net.Listener
	network  string
	address  string
	plan     func(nth int) fate

	transactions atomic.Int64
	connections  atomic.Int64
	cancels      atomic.Int64
	release      chan struct{} // a value lets one delayed transaction go on
	delivered    chan struct{} // gets a value when the server has answered a delayed one

	sessions sync.WaitGroup
	mu       sync.Mutex // protects open
	open     []net.Conn
}

func newProxy(t testing.TB, db *pgx.ConnConfig, plan func(nth int) fate) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, plan: plan, release: make(chan struct{}, 8), delivered: make(chan struct{}, 8)}
	p.network, p.address = pgconn.NetworkAddress(db.Host, db.Port)
	p.sessions.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		close(p.release)
		p.mu.Lock()
		for _, c := range p.open {
			c.Close()
		}
		p.mu.Unlock()
		p.sessions.Wait()
	})
	return p
}

// through returns db with this proxy as its only host.
func (p *proxy) through(db *pgx.ConnConfig) *pgx.ConnConfig {
	own := db.Copy()
	addr := p.listener.Addr().(*net.TCPAddr)
	own.Host, own.Port = addr.IP.String(), uint16(addr.Port)
	own.TLSConfig, own.Fallbacks = nil, nil
	return own
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.connections.Add(1)
		server, err := net.Dial(p.network, p.address)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, client, server)
		p.mu.Unlock()
		s := &session{p: p, client: client, server: server, names: make(map[string]string)}
		p.sessions.Go(s.forward)
		p.sessions.Go(s.backward)
	}
}

type session struct {
	p      *proxy
	client net.Conn
	server net.Conn
	names  map[string]string // prepared statement's name -> SQL
	fate   atomic.Int64
}

func (s *session) cut() {
	s.client.Close()
	s.server.Close()
}

// forward carries the client's messages.
func (s *session) forward() {
	defer s.server.Close()
	in := bufio.NewReader(s.client)
	startup, err := readStartup(in)
	if err != nil {
		return
	}
	if binary.BigEndian.Uint32(startup[4:]) == cancelRequestCode {
		s.p.cancels.Add(1)
	}
	if _, err := s.server.Write(startup); err != nil {
		return
	}
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		switch s.bound(frame) {
		case "BEGIN":
			s.fate.Store(int64(s.p.plan(int(s.p.transactions.Add(1)))))
			if fate(s.fate.Load()) == delay {
				s.hold(in, frame)
				return
			}
		case "COMMIT":
			switch fate(s.fate.Load()) {
			case loseTransaction:
				s.cut()
				return
			case delayCommit:
				s.hold(in, frame)
				return
			}
		}
		if _, err := s.server.Write(frame); err != nil {
			return
		}
	}
}

// hold cuts the client's line and delivers the rest of its transaction when the test says so.
func (s *session) hold(in *bufio.Reader, rest []byte) {
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		rest = append(rest, frame...)
		if frame[0] == 'S' {
			break
		}
	}
	s.client.Close()
	if _, ok := <-s.p.release; !ok {
		return
	}
	if _, err := s.server.Write(rest); err != nil {
		return
	}
	<-s.p.release // the line stays up until the server has answered and the test is done
}

// bound notes what is prepared and returns the SQL of the statement that frame binds.
func (s *session) bound(frame []byte) string {
	fields := bytes.SplitN(frame[5:], []byte{0}, 3)
	switch frame[0] {
	case 'P': // name, SQL
		s.names[string(fields[0])] = string(fields[1])
	case 'B': // portal, name
		return s.names[string(fields[1])]
	}
	return ""
}

// backward carries the server's messages.
func (s *session) backward() {
	defer s.client.Close()
	in := bufio.NewReader(s.server)
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		now := fate(s.fate.Load())
		if frame[0] == 'C' && string(frame[5:]) == "COMMIT\x00" {
			switch now {
			case loseAnswer, fail:
				s.cut()
				return
			case answerRollback:
				frame = encode(&pgproto3.CommandComplete{CommandTag: []byte("ROLLBACK")})
			case warn:
				frame = slices.Concat(encode(&pgproto3.NoticeResponse{Severity: "WARNUNG", SeverityUnlocalized: "WARNING",
					Code: "01000", Message: "committed locally"}), frame)
			case delay, delayCommit:
				s.p.delivered <- struct{}{}
			}
		}
		if now == swallow || now == delay || now == delayCommit {
			continue
		}
		if now == fail {
			frame = encode(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01",
				Message: "server conn crashed?"})
			s.client.Write(frame)
			s.client.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, in) // the server goes on
			return
		}
		if _, err := s.client.Write(frame); err != nil {
			return
		}
	}
}

func encode(m pgproto3.BackendMessage) []byte {
	b, err := m.Encode(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func readStartup(in io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	return readRest(in, head, 0)
}

func readFrame(in io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	return readRest(in, head, 1)
}

func readRest(in io.Reader, head []byte, lengthAt int) ([]byte, error) {
	size := int(binary.BigEndian.Uint32(head[lengthAt:])) + lengthAt
	frame := make([]byte, size)
	_, err := io.ReadFull(in, frame[copy(frame, head):])
	return frame, err
}
