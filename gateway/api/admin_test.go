package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/gateway"
)

func TestAdminListener(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "schemegate_test", Help: "Test."}))
	core, _ := observer.New(zapcore.DebugLevel)
	checks := []Check{
		{Name: "first", Run: func(context.Context) error { return nil }},
		{Name: "second", Run: func(context.Context) error {
			if broken.Load() {
				return io.ErrUnexpectedEOF
			}
			return nil
		}},
	}
	admin, err := NewAdmin(AdminConfig{Listen: "127.0.0.1:0"}, checks, func() []gateway.LinkView { return nil }, reg, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- admin.Run(t.Context()) }()
	t.Cleanup(func() {
		admin.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	get := func(path string) (int, string) {
		response, err := (&http.Client{Transport: transport}).Get("http://" + admin.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for path, want := range map[string]string{"/healthz": `{"ok":true}`, "/metrics": "schemegate_test 0", "/debug/pprof/": "goroutine", "/links": "[]",
		"/readyz": `{"ready":true,"checks":[{"name":"first","ok":true},{"name":"second","ok":true}]}`} {
		if status, body := get(path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	broken.Store(true)
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, `{"name":"second","ok":false,"error":"unexpected EOF"}`) || !strings.Contains(body, `"ready":false`) {
		t.Errorf("readyz: %d %s", status, body)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
}
