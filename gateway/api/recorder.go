package api

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway"
)

const (
	// maxStackFrames of a panic are logged.
	maxStackFrames = 32
	// noRoute is what metrics and logs call a request for nothing we have: the path itself is the client's text.
	noRoute = "none"
)

// recorder is the response as the middleware sees it: what was written, and for whom.
type recorder struct {
	http.ResponseWriter
	writeTimeout time.Duration
	requestID    string
	caller       caller
	status       int   // 0 until something was written
	err          error // the refusal, for the log
}

func (rec *recorder) WriteHeader(status int) {
	if rec.status != 0 {
		return
	}
	rec.status = status
	// The deadline begins with the answer: before it the handler may have waited for the scheme as long as the profile allows.
	rec.deadline((*http.ResponseController).SetWriteDeadline, rec.writeTimeout)
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *recorder) Write(b []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	return rec.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// deadline sets one of the connection's deadlines, or ends it when after is 0. Only a test's recorder has no connection.
func (rec *recorder) deadline(set func(*http.ResponseController, time.Time) error, after time.Duration) {
	var at time.Time
	if after > 0 {
		at = time.Now().Add(after)
	}
	_ = set(http.NewResponseController(rec.ResponseWriter), at)
}

// Handler is the whole API: routes, and around them what is the same for all.
func (a *API) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		rec := &recorder{ResponseWriter: w, writeTimeout: a.config.WriteTimeout.Std(), requestID: newRequestID()}
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Request-Id", rec.requestID)
		next, routeName := a.find(rec, r)
		defer func() {
			if cause := recover(); cause != nil {
				a.recovered(rec, routeName, cause)
			}
			a.observe(rec, routeName, time.Since(began))
		}()
		if r.ContentLength != 0 {
			// Also for a body that nobody reads: the server would wait for its end without a bound.
			rec.deadline((*http.ResponseController).SetReadDeadline, a.config.BodyTimeout.Std())
		}
		next.ServeHTTP(rec, r)
	})
}

// find gives the route's handler and name. What the mux would answer in plain text becomes a problem: a path nobody knows, a
// method nobody takes, and the redirect of a path that is not in its shortest form.
func (a *API) find(rec *recorder, r *http.Request) (http.Handler, string) {
	refusal := func(code gateway.Code) (http.Handler, string) {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { a.refuse(rec, &gateway.Error{Code: code}) }), noRoute
	}
	// As it is written: a slash that is escaped belongs to a name.
	if written := r.URL.EscapedPath(); written == "" || path.Clean(written) != written {
		return refusal(gateway.CodeNotFound)
	}
	next, pattern := a.mux.Handler(r)
	if pattern != "" {
		return a.mux, pattern
	}
	var probe headerProbe
	next.ServeHTTP(&probe, r)
	if allow := probe.Header().Get("Allow"); allow != "" {
		rec.Header().Set("Allow", allow)
		return refusal(gateway.CodeMethodNotAllowed)
	}
	return refusal(gateway.CodeNotFound)
}

// headerProbe takes the headers of an answer and drops the rest.
type headerProbe struct{ header http.Header }

func (p *headerProbe) Header() http.Header {
	if p.header == nil {
		p.header = http.Header{}
	}
	return p.header
}
func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *headerProbe) WriteHeader(int)             {}

func newRequestID() string {
	var id [8]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// refuse answers with the problem that err is. Once an answer has begun nothing can be added to it.
func (a *API) refuse(w http.ResponseWriter, err error) {
	problem := gateway.AsError(err)
	if rec, ok := w.(*recorder); ok {
		rec.err = err
		if rec.status != 0 {
			return
		}
	}
	header := w.Header()
	if after := retryAfter(problem); after != "" {
		header.Set("Retry-After", after)
	}
	if problem.Code == gateway.CodeUnauthenticated {
		header.Set("WWW-Authenticate", `Bearer realm="schemegate"`)
	}
	write(w, problem.Status(), contentProblem, problem.Problem())
}

const (
	contentJSON    = "application/json"
	contentProblem = "application/problem+json"
)

// write sends one whole answer. A failed write has nobody left to be told.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// recovered answers for a handler that panicked. Neither the log nor the answer shows the panic's value, which may hold
// anything; the runtime's own errors speak of indices and types only.
func (a *API) recovered(rec *recorder, routeName string, cause any) {
	if cause == http.ErrAbortHandler { //nolint:errorlint // the server's own signal is this very value
		panic(cause)
	}
	what := fmt.Sprintf("a value of type %T", cause)
	if err, ok := cause.(runtime.Error); ok {
		what = err.Error()
	}
	a.log.Error("request panicked", zap.String("request_id", rec.requestID), zap.String("route", routeName), zap.String("panic", what),
		zap.Strings("stack", stack()))
	a.metrics.panics.Inc()
	a.refuse(rec, &gateway.Error{Code: gateway.CodeInternalAfterRecorded})
}

// stack names the functions between the panic and us, without their arguments.
func stack() []string {
	var counters [maxStackFrames]uintptr
	frames := runtime.CallersFrames(counters[:runtime.Callers(4, counters[:])])
	var lines []string
	for {
		frame, more := frames.Next()
		lines = append(lines, fmt.Sprintf("%s %s:%d", frame.Function, filepath.Base(frame.File), frame.Line))
		if !more {
			return lines
		}
	}
}

// observe counts a request and, where the fault is ours, logs it.
func (a *API) observe(rec *recorder, routeName string, took time.Duration) {
	a.metrics.requests.WithLabelValues(routeName, strconv.Itoa(rec.status)).Inc()
	a.metrics.seconds.WithLabelValues(routeName).Observe(took.Seconds())
	level := zap.DebugLevel
	if rec.status >= http.StatusInternalServerError {
		level = zap.WarnLevel
	}
	entry := a.log.Check(level, "request answered")
	if entry == nil {
		return
	}
	fields := []zap.Field{
		zap.String("request_id", rec.requestID), zap.String("route", routeName), zap.Int("status", rec.status), zap.Duration("took", took),
		zap.String("tenant", rec.caller.tenant), zap.String("key_name", rec.caller.keyName),
	}
	if rec.err != nil {
		fields = append(fields, zap.String("code", string(gateway.AsError(rec.err).Code)), zap.Error(rec.err))
	}
	entry.Write(fields...)
}
