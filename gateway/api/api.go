// Package api is the bank's side of the gateway: JSON over HTTP, with its OpenAPI document, and the operators' listener beside it.
//
// It promises that a stored answer goes out byte for byte; that every refusal, also of a route nobody knows, a method nobody
// takes and a handler that panics, is problem+json with the gateway's own code; and that a caller who leaves ends nothing but
// its own waiting.
//
// It never logs a body, a header, a query or a path as the client wrote it, only the route; it never shows a caller what
// another tenant has; and it decides nothing about a payment.
package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway"
)

// readTimeout bounds the reads of one request. A POST has bounds of its own in the gateway.
const readTimeout = 10 * time.Second

// API serves the bank's side. Make it with New, run it with Run.
type API struct {
	config   Config
	gateway  *gateway.Gateway
	pool     *pgxpool.Pool
	keys     keyring
	log      *zap.Logger
	metrics  *metrics
	mux      *http.ServeMux
	listener net.Listener
	server   *http.Server
	open     atomic.Int64 // connections
}

// New prepares the routes and listens, so that an address in use is found before anything else starts; Run serves. pool reads
// the ledger.
func New(config Config, g *gateway.Gateway, pool *pgxpool.Pool, log *zap.Logger, reg prometheus.Registerer) (*API, error) {
	keys, err := newKeyring(config.Keys)
	if err != nil {
		return nil, err
	}
	a := &API{config: config, gateway: g, pool: pool, keys: keys, log: log, mux: http.NewServeMux()}
	a.metrics = newMetrics(reg, func() float64 { return float64(a.open.Load()) })
	if err := a.register(); err != nil {
		return nil, err
	}
	if a.listener, err = net.Listen("tcp", config.Listen); err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	a.server = &http.Server{
		Handler:           a.Handler(),
		ReadHeaderTimeout: config.HeaderTimeout.Std(),
		IdleTimeout:       config.IdleTimeout.Std(),
		MaxHeaderBytes:    config.MaxHeaderBytes,
		ConnState:         a.countConnection,
		ErrorLog:          zap.NewStdLog(zap.NewNop()), // it would print addresses and panics; both are handled here
	}
	return a, nil
}

// Addr is where the API listens.
func (a *API) Addr() net.Addr { return a.listener.Addr() }

// Run serves until ctx ends. Then it takes no more connections, lets the requests it has come to their answers, and returns
// nil. Close ends that wait.
func (a *API) Run(ctx context.Context) error {
	a.log.Info("API listens", zap.Stringer("address", a.Addr()))
	return serve(ctx, a.server, a.listener)
}

// Close cuts every connection. What their requests have recorded runs on.
func (a *API) Close() error {
	return errors.Join(a.server.Close(), ignoreClosed(a.listener.Close()))
}

// serve runs a server until ctx ends and then until its last request is answered.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	err := server.Shutdown(context.Background())
	<-served
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// countConnection keeps the number of connections within its bound: one more is closed before anything is read from it, so
// its client knows that nothing was taken.
func (a *API) countConnection(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if a.open.Add(1) > int64(a.config.MaxConnections) {
			a.metrics.connectionsRefused.Inc()
			conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		a.open.Add(-1)
	}
}

// route is one operation: what the OpenAPI document says of it, and what answers it.
type route struct {
	operation huma.Operation
	handle    func(w http.ResponseWriter, r *http.Request, c caller) error
}

// register declares the routes to huma, which keeps the OpenAPI document and hands each request to the mux. Requests are not
// decoded by it: bodies go to the gateway as bytes, and stored answers come back as bytes.
func (a *API) register() error {
	document := newDocument()
	config := huma.Config{OpenAPI: document} // no paths: the document and its page are served below, without scripts from elsewhere
	api := humago.New(a.mux, config)
	for _, rt := range a.routes() {
		operation, handle := rt.operation, rt.handle
		document.AddOperation(&operation)
		api.Adapter().Handle(&operation, func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			if err := a.handle(w, r, handle); err != nil {
				a.refuse(w, err)
			}
		})
	}
	spec, err := document.MarshalJSON()
	if err != nil {
		return fmt.Errorf("marshal OpenAPI document: %w", err)
	}
	page, err := renderDocs(document)
	if err != nil {
		return fmt.Errorf("render documentation: %w", err)
	}
	a.mux.HandleFunc("GET /openapi.json", static("application/json", spec))
	a.mux.HandleFunc("GET /docs", static("text/html; charset=utf-8", page))
	return nil
}

func static(contentType string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// handle finds the caller and lets the route answer.
func (a *API) handle(w http.ResponseWriter, r *http.Request, handle func(http.ResponseWriter, *http.Request, caller) error) error {
	c, err := a.keys.authenticate(r.Header)
	if err != nil {
		return err
	}
	if rec, ok := w.(*recorder); ok {
		rec.caller = c
	}
	if r.Method != http.MethodPost {
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	return handle(w, r, c)
}
