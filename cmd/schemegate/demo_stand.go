package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/template"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/api"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/ledger/localpg"
)

const (
	demoLink      = "demo-scheme"
	demoTenant    = "demo-bank"
	demoLateAfter = 2500 * time.Millisecond
	demoAnswer    = time.Second
	// demoReadyLimit bounds a start that may have to make a PostgreSQL cluster first.
	demoReadyLimit = 60 * time.Second
	demoStopLimit  = 30 * time.Second
)

// demoConfig is the configuration the demo's daemon runs with: short times, so that a reader sees a reversal happen.
var demoConfig = template.Must(template.New("config").Parse(`# made by schemegate demo
instance: demo
data_dir: .
log: {level: info}
api:
  listen: {{.API}}
  keys:
    - {tenant: {{.Tenant}}, name: demo, sha256: {{.KeyHash}}}
admin:
  listen: {{.Admin}}
vault:
  sealing_keys:
    - {id: demo-1, key: {file: {{.Dir}}/seal.key}}
  hash_key: {file: {{.Dir}}/hash.key}
links:
  {{.Link}}:
    address: {{.Scheme}}
    acquirer_id: "12345678901"
    answer_within: {{.AnswerWithin}}
    send_within: 500ms
    reconnect_min: 50ms
    reconnect_max: 1s
    silence:
      policy: reverse
      answer_within: 2s
      first_gap: 1s
`))

// demoStand is what the story is played on: a simulated scheme in this process, and a daemon in one of its own, so that it
// can be killed.
type demoStand struct {
	dir          string
	temporary    bool
	program      string
	configFile   string
	apiAddress   string
	adminAddress string
	apiKey       string
	scheme       *sim.Card
	endScheme    func()
	daemon       *exec.Cmd
	log          *os.File
}

func newDemoStand(dir string) (*demoStand, error) {
	s := &demoStand{dir: dir}
	var err error
	if s.program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if dir == "" {
		s.temporary = true
		if s.dir, err = os.MkdirTemp("", "schemegate-demo-"); err != nil {
			return nil, fmt.Errorf("make the demo's directory: %w", err)
		}
		// PostgreSQL does not run as root; its own user must be able to pass through.
		err = os.Chmod(s.dir, 0o755)
	} else {
		err = os.MkdirAll(s.dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("make the demo's directory: %w", err)
	}
	if s.log, err = os.OpenFile(filepath.Join(s.dir, "daemon.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return nil, fmt.Errorf("open the daemon's log: %w", err)
	}
	return s, nil
}

// startScheme starts the simulated card scheme.
func (s *demoStand) startScheme() error {
	cfg := sim.DefaultCardConfig()
	cfg.LateAfter = configs.Duration(demoLateAfter)
	card, err := sim.NewCard(cfg, zap.NewNop())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = card.Run(ctx)
	}()
	s.scheme = card
	s.endScheme = func() { cancel(); <-done }
	return nil
}

// configure writes keys and configuration; what a former run left in a named directory is used again.
func (s *demoStand) configure() error {
	for _, name := range []string{"seal.key", "hash.key"} {
		file := filepath.Join(s.dir, name)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		if err := os.WriteFile(file, []byte(gateway.NewVaultKey()), 0o600); err != nil {
			return fmt.Errorf("write key: %w", err)
		}
	}
	var err error
	var entry api.Key
	if s.apiKey, entry, err = api.NewKey(demoTenant, "demo"); err != nil {
		return err
	}
	if s.apiAddress, err = freeAddress(); err != nil {
		return err
	}
	if s.adminAddress, err = freeAddress(); err != nil {
		return err
	}
	var text bytes.Buffer
	err = demoConfig.Execute(&text, map[string]string{"API": s.apiAddress, "Admin": s.adminAddress, "Tenant": demoTenant, "KeyHash": entry.SHA256,
		"Dir": s.dir, "Link": demoLink, "Scheme": s.scheme.Addr().String(), "AnswerWithin": demoAnswer.String()})
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	s.configFile = filepath.Join(s.dir, "schemegate.yaml")
	return os.WriteFile(s.configFile, text.Bytes(), 0o600)
}

// freeAddress finds a port that nobody listens on at this moment.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// startDaemon starts `schemegate serve` and waits until it is ready and its link is signed on.
func (s *demoStand) startDaemon(ctx context.Context) error {
	s.daemon = exec.Command(s.program, "serve", "--config", s.configFile)
	s.daemon.Stderr, s.daemon.Stdout = s.log, s.log
	if err := s.daemon.Start(); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, demoReadyLimit)
	defer cancel()
	return until(ctx, "the daemon is ready and signed on", func() bool {
		return s.get(ctx, "http://"+s.adminAddress+"/readyz", nil) == http.StatusOK && s.signedOn(ctx)
	})
}

func (s *demoStand) signedOn(ctx context.Context) bool {
	var links struct {
		Items []struct {
			State string `json:"state"`
		} `json:"items"`
	}
	return s.get(ctx, "http://"+s.apiAddress+"/v1/links", &links) == http.StatusOK && len(links.Items) == 1 && links.Items[0].State == "signed_on"
}

// kill ends the daemon the hard way: SIGKILL, no chance to tidy up.
func (s *demoStand) kill() error {
	if err := s.daemon.Process.Kill(); err != nil {
		return fmt.Errorf("kill the daemon: %w", err)
	}
	_ = s.daemon.Wait() // "signal: killed" is what is wanted
	s.daemon = nil
	return nil
}

// close ends daemon and scheme in order and removes a temporary directory.
func (s *demoStand) close() error {
	var errs []error
	if s.daemon != nil {
		errs = append(errs, s.terminate())
	}
	errs = append(errs, s.stopOrphanedPostgres())
	if s.endScheme != nil {
		s.endScheme()
	}
	s.log.Close()
	if s.temporary {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *demoStand) terminate() error {
	if err := s.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the daemon: %w", err)
	}
	timer := time.AfterFunc(demoStopLimit, func() { _ = s.daemon.Process.Kill() })
	defer timer.Stop()
	if err := s.daemon.Wait(); err != nil {
		return fmt.Errorf("the daemon did not end in order: %w", err)
	}
	return nil
}

// stopOrphanedPostgres ends a server that a killed daemon left: it is adopted and stopped as the daemon would.
func (s *demoStand) stopOrphanedPostgres() error {
	if _, err := os.Stat(filepath.Join(s.dir, "postgresql")); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), demoStopLimit)
	defer cancel()
	server, err := localpg.Start(ctx, localpg.Config{DataDir: s.dir}, zap.NewNop())
	if err != nil {
		return fmt.Errorf("adopt PostgreSQL to stop it: %w", err)
	}
	return server.Stop(ctx)
}

// keepLog copies the daemon's log out of a temporary directory, so that a failure can be understood.
func (s *demoStand) keepLog() string {
	if !s.temporary {
		return s.log.Name()
	}
	text, err := os.ReadFile(s.log.Name())
	if err != nil {
		return "lost"
	}
	kept, err := os.CreateTemp("", "schemegate-demo-*.log")
	if err != nil {
		return "lost"
	}
	defer kept.Close()
	if _, err := kept.Write(text); err != nil {
		return "lost"
	}
	return kept.Name()
}

// sampleFile writes a request to try by hand.
func (s *demoStand) sampleFile() string {
	file := filepath.Join(s.dir, "purchase.json")
	body, err := json.MarshalIndent(demoPurchase("by-hand-1", "12.34"), "", "  ")
	if err == nil {
		err = os.WriteFile(file, body, 0o644)
	}
	if err != nil {
		return "(not written: " + err.Error() + ")"
	}
	return file
}

// until polls a condition until it holds or ctx ends.
func until(ctx context.Context, what string, holds func() bool) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}
