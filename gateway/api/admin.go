package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
)

const (
	defaultAdminAddress = "127.0.0.1:8481"
	// checkTimeout bounds one readiness check.
	checkTimeout = 2 * time.Second
	// adminHeaderTimeout bounds how slowly a request may come.
	adminHeaderTimeout = 5 * time.Second
	adminIdleTimeout   = time.Minute
	maxAdminHeader     = 16 << 10
	// maxScrapes at once; a scraper that hangs must not pile up.
	maxScrapes = 4
)

// AdminConfig is where operators and their tools look. The listener has no keys: it belongs on an inner address.
type AdminConfig struct {
	Listen string `yaml:"listen"` // host:port; port 0 takes a free one
}

// DefaultAdminConfig listens on the loopback interface.
func DefaultAdminConfig() AdminConfig { return AdminConfig{Listen: defaultAdminAddress} }

// Validate adds every fault of the configuration.
func (c AdminConfig) Validate(path string, f *configs.Faults) {
	validateAddress(path+".listen", c.Listen, f)
}

// Check is one condition of readiness. Its error names what is wrong, for people.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Admin serves health, readiness, metrics and profiles.
type Admin struct {
	log      *zap.Logger
	listener net.Listener
	server   *http.Server
}

// NewAdmin listens; Run serves. Every check runs for each look at /readyz.
func NewAdmin(config AdminConfig, checks []Check, links func() []gateway.LinkView, metrics prometheus.Gatherer, log *zap.Logger) (*Admin, error) {
	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, contentJSON, []byte(`{"ok":true}`))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { serveReadiness(w, r, checks) })
	mux.HandleFunc("GET /links", serveLinks(links))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &Admin{log: log, listener: listener, server: &http.Server{Handler: mux, ReadHeaderTimeout: adminHeaderTimeout,
		IdleTimeout: adminIdleTimeout, MaxHeaderBytes: maxAdminHeader, ErrorLog: zap.NewStdLog(zap.NewNop())}}, nil
}

// Addr is where the listener is.
func (a *Admin) Addr() net.Addr { return a.listener.Addr() }

// Run serves until ctx ends, and then cuts what is left: a profile may take a minute.
func (a *Admin) Run(ctx context.Context) error {
	a.log.Info("administration listens", zap.Stringer("address", a.Addr()))
	stop := context.AfterFunc(ctx, func() { _ = a.Close() })
	defer stop()
	if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve administration: %w", err)
	}
	return nil
}

// Close ends the listener and its connections at once.
func (a *Admin) Close() error {
	return errors.Join(a.server.Close(), ignoreClosed(a.listener.Close()))
}

// checkResult is one line of /readyz.
type checkResult struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// serveReadiness runs all checks side by side and says 200 only when every one holds.
func serveReadiness(w http.ResponseWriter, r *http.Request, checks []Check) {
	results := make([]checkResult, len(checks))
	var running sync.WaitGroup
	for i, check := range checks {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
			defer cancel()
			results[i] = checkResult{Name: check.Name, OK: true}
			if err := check.Run(ctx); err != nil {
				results[i].OK, results[i].Error = false, err.Error()
			}
		})
	}
	running.Wait()
	status, ready := http.StatusOK, true
	for _, result := range results {
		if !result.OK {
			status, ready = http.StatusServiceUnavailable, false
		}
	}
	body, err := json.Marshal(struct {
		Ready  bool          `json:"ready"`
		Checks []checkResult `json:"checks"`
	}{ready, results})
	if err != nil { // strings and booleans only
		panic(fmt.Sprintf("marshal readiness: %v", err))
	}
	write(w, status, contentJSON, body)
}
