package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const stopLimit = 15 * time.Second

// bench is an API on a real socket before a whole gateway.
type bench struct {
	*gatewaytest.Stand
	api    *API
	logs   *observer.ObservedLogs
	url    string
	key    string // of gatewaytest.Tenant
	other  string // of a second tenant
	ops    string // of gatewaytest.Tenant, with the right to decide about links
	client *http.Client
	stop   func()
}

func setup(t *testing.T, options gatewaytest.Options, change func(*Config)) *bench {
	t.Helper()
	b := &bench{Stand: gatewaytest.New(t, options)}
	config := DefaultConfig()
	config.Listen = "127.0.0.1:0"
	config.Keys = make([]Key, 3)
	var err error
	if b.key, config.Keys[0], err = NewKey(gatewaytest.Tenant, "core"); err != nil {
		t.Fatal(err)
	}
	if b.other, config.Keys[1], err = NewKey("bank-b", "core"); err != nil {
		t.Fatal(err)
	}
	if b.ops, config.Keys[2], err = NewKey(gatewaytest.Tenant, "ops"); err != nil {
		t.Fatal(err)
	}
	config.Keys[2].Operator = true
	if change != nil {
		change(&config)
	}
	core, logs := observer.New(zapcore.DebugLevel)
	b.logs = logs
	if b.api, err = New(config, b.Gateway, b.DB.Pool, zap.New(core), b.Registry); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.api.Run(ctx) }()
	transport := &http.Transport{}
	b.url, b.client = "http://"+b.api.Addr().String(), &http.Client{Transport: transport, Timeout: stopLimit}
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		transport.CloseIdleConnections()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run API: %v", err)
			}
		case <-time.After(stopLimit):
			t.Error("the API does not end")
			b.api.Close()
		}
	}
	t.Cleanup(b.stop)
	return b
}

// answer is a response, read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (b *bench) do(t *testing.T, method, path string, header http.Header, body []byte) answer {
	t.Helper()
	r, err := http.NewRequest(method, b.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	response, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: response.StatusCode, header: response.Header, body: content}
}

// headers are name, value pairs after the bearer key.
func (b *bench) headers(pairs ...string) http.Header {
	h := http.Header{"Authorization": {"Bearer " + b.key}}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func (b *bench) post(t *testing.T, key string, body []byte, pairs ...string) answer {
	t.Helper()
	header := b.headers(append([]string{"Idempotency-Key", key, "Content-Type", "application/json"}, pairs...)...)
	return b.do(t, http.MethodPost, "/v1/authorizations", header, body)
}

// postAs posts a JSON value to a path under a bearer key and an idempotency key.
func (b *bench) postAs(t *testing.T, bearer, path, key string, body any) answer {
	t.Helper()
	header := http.Header{"Authorization": {"Bearer " + bearer}, "Idempotency-Key": {key}, "Content-Type": {"application/json"}}
	return b.do(t, http.MethodPost, path, header, encode(t, body))
}

func (b *bench) get(t *testing.T, path string) answer {
	t.Helper()
	return b.do(t, http.MethodGet, path, b.headers(), nil)
}

func (b *bench) getAs(t *testing.T, key, path string) answer {
	t.Helper()
	return b.do(t, http.MethodGet, path, http.Header{"Authorization": {"Bearer " + key}}, nil)
}

// problem is the body of a refusal.
type problem struct {
	Status   int                  `json:"status"`
	Code     gateway.Code         `json:"code"`
	Detail   string               `json:"detail"`
	Sent     gateway.Sent         `json:"sent"`
	Retry    gateway.Retry        `json:"retry"`
	Resource string               `json:"resource"`
	Faults   []gateway.FieldFault `json:"faults"`
}

// wantProblem checks what every refusal has in common.
func wantProblem(t *testing.T, a answer, status int, code gateway.Code) problem {
	t.Helper()
	if kind := a.header.Get("Content-Type"); a.status != status || kind != "application/problem+json" {
		t.Fatalf("got %d %s %s; want %d %s", a.status, kind, a.body, status, code)
	}
	p := decode[problem](t, a.body)
	if p.Code != code || p.Status != status || p.Sent == "" || p.Retry == "" {
		t.Fatalf("got %s; want code %s", a.body, code)
	}
	return p
}

func decode[T any](t *testing.T, body []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return v
}

// page is any list.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}
