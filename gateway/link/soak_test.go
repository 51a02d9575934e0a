package link

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// soakFor is how long TestSoak runs: go test ./gateway/link -run TestSoak -soak 10m -timeout 15m
var soakFor = flag.Duration("soak", 3*time.Second, "how long the soak test of gateway/link runs")

const (
	soakWorkers = 32
	// soakSlack is for a starved machine, after a call's deadline.
	soakSlack = 5 * time.Second
	// What may be left over at the end beyond what was there after the first quarter.
	soakHeapBytes  = 8 << 20
	soakGoroutines = 24
)

// soakPeers are ways to be a bad peer, and a good one; each runs for one connection. Chance is the connection's own.
var soakPeers = map[string]func(s *soakTest, c *conn, chance *rand.Rand){
	"good": func(s *soakTest, c *conn, _ *rand.Rand) {
		s.serve(c, func(m *iso8583.Message) error { return c.write(response(m, "00")) })
	},
	"silent": func(s *soakTest, c *conn, _ *rand.Rand) {
		if c.signOn() == nil {
			s.serve(c, func(*iso8583.Message) error { return nil })
		}
	},
	"slow": func(s *soakTest, c *conn, chance *rand.Rand) {
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if c.signOn() != nil {
			return
		}
		s.serve(c, func(m *iso8583.Message) error {
			for frame := framed(response(m, "00")); len(frame) > 0; {
				n := 1 + chance.IntN(min(16, len(frame)))
				if _, err := c.Write(frame[:n]); err != nil {
					return err
				}
				frame = frame[n:]
				s.pause(time.Duration(chance.IntN(3)) * time.Millisecond)
			}
			return nil
		})
	},
	"garbling": (*soakTest).garble,
	"flapping": func(s *soakTest, c *conn, chance *rand.Rand) {
		left := chance.IntN(40) // messages until the end of this connection
		if chance.IntN(4) == 0 {
			refuse(c)
			return
		}
		s.serve(c, func(m *iso8583.Message) error {
			if left--; left >= 0 {
				return c.write(response(m, "00"))
			}
			frame := framed(response(m, "00"))
			_, _ = c.Write(frame[:chance.IntN(len(frame))])
			if chance.IntN(2) == 0 {
				reset(c)
			}
			return errors.New("gone")
		})
	},
}

// garble answers, and now and then sends something else than it should.
func (s *soakTest) garble(c *conn, chance *rand.Rand) {
	if c.signOn() != nil {
		return
	}
	s.serve(c, func(m *iso8583.Message) error {
		frame := framed(response(m, "00"))
		switch chance.IntN(12) {
		case 0: // a bit is wrong
			frame[chance.IntN(len(frame))] ^= 1 << chance.IntN(8)
		case 1: // not a message
			frame = append([]byte{0, 5}, "01\xff00"...)
		case 2:
			frame = append(frame, frame...)
		case 3:
			frame = append(frame, 0, 0, 0, 0)
		case 4: // somebody else's answer
			must(m.Set(iso8583.STAN, "999999"))
			frame = framed(response(m, "00"))
		case 5:
			frame = append(frame, framed(networkRequest(0x0800, chance.IntN(999999), "301"))...)
		}
		_, err := c.Write(frame)
		return err
	})
}

// soakTest is one run.
type soakTest struct {
	t        *testing.T
	ended    chan struct{}
	peers    sync.WaitGroup
	link     *Link
	current  [soakWorkers]atomic.Int64 // each worker's call in flight
	received [soakWorkers]atomic.Int64 // how often a peer got that call
	latest   atomic.Int64              // nanoseconds after its deadline at which a call returned
	outcomes [3]atomic.Int64           // answered, not sent, unknown
}

// pause waits; it is part of what slow peers do.
func (s *soakTest) pause(d time.Duration) {
	select {
	case <-s.ended:
	case <-time.After(d):
	}
}

// serve gives every message to answer, having noted it.
func (s *soakTest) serve(c *conn, answer func(*iso8583.Message) error) {
	for {
		m, err := c.read()
		if err != nil {
			return
		}
		if m.MTI().Class() != 8 {
			var worker int
			var call int64
			if _, err := fmt.Sscanf(m.Get(iso8583.RRN), "%3d%9d", &worker, &call); err == nil && s.current[worker].Load() == call {
				s.received[worker].Add(1)
			}
		}
		if m.MTI().IsRequest() && answer(m) != nil {
			return
		}
	}
}

// listen accepts connections until the test ends, and forgets each with its end: a flapping peer has many.
func (s *soakTest) listen(serve func(*soakTest, *conn, *rand.Rand)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.peers.Go(func() {
		<-s.ended
		listener.Close()
	})
	s.peers.Go(func() {
		for seed := uint64(0); ; seed++ {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			over := make(chan struct{})
			s.peers.Go(func() {
				select {
				case <-s.ended:
				case <-over:
				}
				nc.Close()
			})
			s.peers.Go(func() {
				defer close(over)
				serve(s, newConn(nc), rand.New(rand.NewPCG(seed, 1)))
			})
		}
	})
	return listener.Addr().String()
}

// work makes calls until the context ends, each with a short deadline, and checks what is known about its outcome.
func (s *soakTest) work(ctx context.Context, worker int) {
	chance := rand.New(rand.NewPCG(uint64(worker), 2))
	for ctx.Err() == nil {
		n := s.current[worker].Add(1)
		s.received[worker].Store(0)
		mti := iso8583.MTIAuthorizationRequest
		if chance.IntN(4) == 0 {
			mti = iso8583.MTIReversalAdvice
		}
		m := request(mti, int(n%900000)+1, fmt.Sprintf("W%d", worker))
		must(m.Set(iso8583.RRN, fmt.Sprintf("%03d%09d", worker, n)))
		deadline := time.Now().Add(time.Duration(20+chance.IntN(200)) * time.Millisecond)
		body, err := s.link.Exchange(context.Background(), Call{Body: encoded(m), Deadline: deadline, Affinity: chance.Uint64N(8)})
		late := int64(time.Since(deadline))
		for seen := s.latest.Load(); late > seen && !s.latest.CompareAndSwap(seen, late); seen = s.latest.Load() {
		}
		received := s.received[worker].Load()
		switch {
		case err == nil:
			s.outcomes[0].Add(1)
			var p iso8583.Peeked
			if err := testSpec.Peek(body, &p); err != nil || string(p.Value(iso8583.STAN)) != m.Get(iso8583.STAN) {
				s.t.Errorf("the answer of another call was delivered (%v)", err)
			}
		case NotSent(err):
			s.outcomes[1].Add(1)
			if received != 0 {
				s.t.Errorf("a call that was not sent (%v) was received", err)
			}
			s.pause(time.Millisecond)
		default:
			s.outcomes[2].Add(1)
		}
		if received > 1 {
			s.t.Errorf("a call was received %d times", received)
		}
	}
}

// traffic lets all workers work for a while, and then measures what is left when everything is quiet.
func (s *soakTest) traffic(d time.Duration, goroutines int) (heap uint64) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	var workers sync.WaitGroup
	for worker := range soakWorkers {
		workers.Go(func() { s.work(ctx, worker) })
	}
	workers.Wait()
	s.link.mu.Lock()
	pending, affinities := 0, len(s.link.affinities)
	for _, c := range s.link.pending {
		if !c.network() {
			pending++
		}
	}
	s.link.mu.Unlock()
	if pending != 0 || affinities != 0 {
		s.t.Errorf("%d calls and %d affinities are left without a caller", pending, affinities)
	}
	eventually(s.t, "goroutines are as few as before", func() bool { return runtime.NumGoroutine() <= goroutines })
	runtime.GC()
	runtime.GC() // what the first one finalised
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestSoak: good, silent, slow, garbling and flapping peers, each behind a line of one link. No call outlives its deadline, none is sent
// twice, goroutines and heap stay flat. It runs before the parallel tests, so that what it counts is its own.
func TestSoak(t *testing.T) {
	s := &soakTest{t: t, ended: make(chan struct{})}
	before := runtime.NumGoroutine()
	cfg := testConfig("")
	for _, name := range []string{"silent", "slow", "garbling", "flapping"} {
		cfg.Addresses = append(cfg.Addresses, s.listen(soakPeers[name]))
	}
	cfg.Address = s.listen(soakPeers["good"])
	cfg.Lines = 2 * len(soakPeers)
	cfg.MaxPending = 16
	cfg.EchoInterval, cfg.EchoTimeout = configs.Duration(200*time.Millisecond), configs.Duration(100*time.Millisecond)
	cfg.WriteTimeout, cfg.SignOnTimeout = configs.Duration(100*time.Millisecond), configs.Duration(300*time.Millisecond)
	cfg.Budgets = BudgetsConfig{MaxRate: 2000, InboundBytes: 1 << 20, InboundFrames: 5000, UselessFrames: 500}
	var handedOn atomic.Int64
	l, stop := runLink(t, cfg, Options{Dial: smallBuffers, OnUnmatched: func(Unmatched) { handedOn.Add(1) }})
	s.link = l
	waitState(t, l, SignedOn)
	goroutines := before + 2*len(soakPeers) + cfg.Lines*6 + soakGoroutines // accept loops; run, reader, answers and the peer's
	first := s.traffic(*soakFor/4, goroutines)
	last := s.traffic(*soakFor*3/4, goroutines)
	stop()
	close(s.ended)
	s.peers.Wait()
	status := l.Status()
	answered, notSent, unknown := s.outcomes[0].Load(), s.outcomes[1].Load(), s.outcomes[2].Load()
	t.Logf("%d answered, %d not sent, %d unknown; the latest %s after its deadline; %d reconnects, %d handed on; heap %d, then %d KiB",
		answered, notSent, unknown, time.Duration(s.latest.Load()), status.Reconnects, handedOn.Load(), first>>10, last>>10)
	if late := time.Duration(s.latest.Load()); late > soakSlack {
		t.Errorf("a call returned %s after its deadline", late)
	}
	if last > first+soakHeapBytes {
		t.Errorf("the heap grew from %d to %d KiB", first>>10, last>>10)
	}
	if answered == 0 || unknown == 0 || status.Reconnects == 0 || handedOn.Load() == 0 {
		t.Error("the peers were not as bad, or as good, as they should be")
	}
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= before })
}
