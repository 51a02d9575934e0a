package localpg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// recoveringGap is the longest pause between two looks at a server that
	// recovers: each look is a line in its log.
	recoveringGap = time.Second
	// recoveringNews is how often a start that waits for a recovery says so.
	recoveringNews = time.Minute
)

// patience decides how long a server is waited for. One that says that it is
// starting recovers, and takes as long as it takes: ended half way, the next
// would begin the same recovery anew. Only silence has a limit.
type patience struct {
	limit  time.Duration
	heard  time.Time // when the server said something
	told   time.Time // when the log said that it recovers
	gap    time.Duration
	log    *zap.Logger
	server int // its process, for the log
}

func (s *Server) patience(pid int) *patience {
	now := time.Now()
	return &patience{limit: s.limits.silence, heard: now, told: now, gap: pollInterval, log: s.log, server: pid}
}

// spent reports whether the server was silent for too long, err being what the
// last look at it brought.
func (p *patience) spent(err error) bool {
	now := time.Now()
	if !errors.Is(err, errStarting) {
		p.gap = pollInterval
		return now.Sub(p.heard) > p.limit
	}
	p.heard = now
	p.gap = min(2*p.gap, recoveringGap)
	if now.Sub(p.told) >= recoveringNews {
		p.told = now
		p.log.Info("private PostgreSQL is still recovering", zap.Int("pid", p.server))
	}
	return false
}

// adopt takes over a server that is running, waiting for one that is still
// starting. False: none is running that can be seen from here.
func (s *Server) adopt(ctx context.Context) (bool, error) {
	var wait *patience
	for {
		file, err := readPIDFile(s.paths.pidFile())
		if err != nil {
			return false, err
		}
		if file == nil {
			return false, nil
		}
		alive, certain := postmasterAlive(file.pid, s.paths.data)
		if !alive {
			s.pid = 0
			return false, nil
		}
		if certain {
			s.pid = file.pid // ended by a start that fails if nobody else uses it
		}
		// A young postmaster has not written its socket directory yet.
		notReady := errNotReady
		if file.socketDir != "" {
			s.socketDir = file.socketDir
			if notReady = s.ping(ctx); !errors.Is(notReady, errNotReady) {
				if notReady == nil {
					s.pid = file.pid
				}
				return notReady == nil, notReady
			}
		}
		if wait == nil || wait.server != file.pid {
			wait = s.patience(file.pid)
		}
		if wait.spent(notReady) {
			return false, fmt.Errorf("wait for running server, process %d: silent for %v: %w", file.pid, s.limits.silence, notReady)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for running server, process %d: %w: %w", file.pid, context.Cause(ctx), notReady)
		case <-time.After(wait.gap):
		}
	}
}

// leave ends this process's use of the server, and the server when nobody else
// uses it; ended reports the latter. The start lock is held, so that nobody
// begins to use the server between the look and the shutdown.
func (s *Server) leave(ctx context.Context) (ended bool, err error) {
	last, err := s.use.tryUpgrade()
	if err != nil || !last {
		return false, err
	}
	server, err := s.current()
	if err != nil || server.pid == 0 {
		return false, err
	}
	return true, server.shutDown(ctx)
}

// current is the server that the last user has to end: this process's own or,
// when that has ended, the one that another user started in its place.
func (s *Server) current() (*Server, error) {
	if s.pid != 0 && s.running() {
		return s, nil
	}
	file, err := readPIDFile(s.paths.pidFile())
	if err != nil || file == nil || file.pid == s.pid {
		return s, err
	}
	alive, certain := postmasterAlive(file.pid, s.paths.data)
	if !alive || !certain {
		return s, nil
	}
	// A copy: Alive may be asking about the old one.
	next := *s
	next.pid, next.reaped, next.socketDir = file.pid, nil, file.socketDir
	return &next, nil
}
