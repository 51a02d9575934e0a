package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/iso8583"
)

func TestAuthorizationIsAnsweredReplayedAndRead(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	body := gatewaytest.Purchase("12.34", map[string]any{"client_reference": "ref-1"})
	first := b.post(t, "key-1", body)
	v := gatewaytest.Decode(t, first.body)
	location := "/v1/authorizations/" + v.ID.String()
	if first.status != 201 || v.State != "approved" || first.header.Get("Location") != location || first.header.Get("Idempotent-Replayed") != "" {
		t.Fatalf("got %d %v %s", first.status, first.header, first.body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if got := first.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	again := b.post(t, `"key-1"`, body) // the quoted form names the same key
	if again.status != 201 || again.header.Get("Idempotent-Replayed") != "true" || !bytes.Equal(again.body, first.body) || again.header.Get("Location") != location {
		t.Fatalf("repeat got %d %v %s", again.status, again.header, again.body)
	}
	if n := b.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
	if read := b.get(t, location); read.status != 200 || !bytes.Equal(read.body, first.body) {
		t.Fatalf("read got %d %s, want %s", read.status, read.body, first.body)
	}
	for _, query := range []string{"client_reference=ref-1", "rrn=" + v.RRN, "stan=" + v.STAN + "&state=approved", "link=" + gatewaytest.LinkName} {
		list := decode[page[gatewaytest.View]](t, b.get(t, "/v1/authorizations?"+query).body)
		if len(list.Items) != 1 || list.Items[0].ID != v.ID || list.NextCursor != nil {
			t.Errorf("%s: %+v", query, list)
		}
	}
	if list := decode[page[gatewaytest.View]](t, b.get(t, "/v1/authorizations?state=declined").body); len(list.Items) != 0 || list.Items == nil {
		t.Errorf("declined: %+v, want an empty list", list)
	}
}

func TestAnotherTenantSeesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	v := gatewaytest.Decode(t, b.post(t, "key-1", gatewaytest.Purchase("12.34", nil)).body)
	wantProblem(t, b.getAs(t, b.other, "/v1/authorizations/"+v.ID.String()), 404, gateway.CodeNotFound)
	if list := decode[page[gatewaytest.View]](t, b.getAs(t, b.other, "/v1/authorizations?rrn="+v.RRN).body); len(list.Items) != 0 {
		t.Fatalf("the other tenant sees %+v", list)
	}
	accounts := decode[page[accountBody]](t, b.get(t, "/v1/ledger/accounts").body)
	if len(accounts.Items) != 2 {
		t.Fatalf("accounts %+v", accounts)
	}
	if list := decode[page[accountBody]](t, b.getAs(t, b.other, "/v1/ledger/accounts").body); len(list.Items) != 0 {
		t.Fatalf("the other tenant sees %+v", list)
	}
	for _, what := range []string{"balance", "entries"} {
		path := "/v1/ledger/accounts/" + itoa(accounts.Items[0].ID) + "/" + what
		if a := b.get(t, path); a.status != 200 {
			t.Fatalf("%s got %d", what, a.status)
		}
		wantProblem(t, b.getAs(t, b.other, path), 404, gateway.CodeNotFound)
	}
}

func TestWaitIsBoundedByPrefer(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	body := gatewaytest.Purchase("10.91", nil) // the scheme stays silent
	provisional := b.post(t, "key-1", body, "Prefer", "respond-async")
	v := gatewaytest.Decode(t, provisional.body)
	if provisional.status != 202 || v.State != "pending" || v.Outcome != "unknown" || provisional.header.Get("Location") != "/v1/authorizations/"+v.ID.String() {
		t.Fatalf("got %d %s", provisional.status, provisional.body)
	}
	running := b.post(t, "key-1", body)
	p := wantProblem(t, running, 409, gateway.CodeInProgress)
	if running.header.Get("Retry-After") == "" || p.Resource != "/v1/authorizations/"+v.ID.String() || p.Retry != gateway.RetryAfter {
		t.Fatalf("got %v %s", running.header, running.body)
	}
	final := b.post(t, "key-1", body, "Prefer", "wait=10")
	f := gatewaytest.Decode(t, final.body)
	if final.status != 201 || f.ID != v.ID || f.State != "timed_out" || f.Retry != "never" || f.Reversal == nil {
		t.Fatalf("got %d %s", final.status, final.body)
	}
	b.AwaitState(t, v.ID, "reversed")
	if again := b.post(t, "key-1", body); !bytes.Equal(again.body, final.body) {
		t.Fatalf("the stored answer changed: %s", again.body)
	}
	if read := gatewaytest.Decode(t, b.get(t, "/v1/authorizations/"+v.ID.String()).body); read.State != "reversed" {
		t.Fatalf("the read shows %s", read.State)
	}
}

func TestStoredRefusalIsAProblemAndReplayed(t *testing.T) {
	t.Parallel()
	// A key of DE 41 alone: while the first request of a terminal waits, a second one cannot be told from it and is not sent.
	b := setup(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Correlation = []iso8583.Element{iso8583.TerminalID} }}, nil)
	if a := b.post(t, "key-1", gatewaytest.Purchase("10.91", nil), "Prefer", "wait=0"); a.status != 202 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	b.Eventually(t, "the first request is on the wire", func() bool { return b.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	body := gatewaytest.Purchase("1.00", nil)
	refused := b.post(t, "key-2", body)
	p := wantProblem(t, refused, 503, gateway.CodeNotSent)
	if p.Sent != gateway.SentNo || p.Retry != gateway.RetryNewKey || p.Resource == "" {
		t.Fatalf("got %s", refused.body)
	}
	again := b.post(t, "key-2", body)
	wantProblem(t, again, 503, gateway.CodeNotSent)
	if !bytes.Equal(again.body, refused.body) || again.header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("repeat got %v %s", again.header, again.body)
	}
}

func TestFullLinkRefusesBeforeTheRecord(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.MaxPending = 1 }}, nil)
	if a := b.post(t, "key-1", gatewaytest.Purchase("10.91", nil), "Prefer", "wait=0"); a.status != 202 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	b.Eventually(t, "the first request is on the wire", func() bool { return b.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	p := wantProblem(t, b.post(t, "key-2", gatewaytest.Purchase("1.00", nil)), 503, gateway.CodeOverloaded)
	if p.Sent != gateway.SentNo || p.Retry != gateway.RetryAfter {
		t.Fatalf("got %+v", p)
	}
	if n := b.Count(t, `SELECT count(*) FROM idempotency_claim`); n != 1 {
		t.Fatalf("%d claims, want the first request's alone", n)
	}
}

func TestConflictsNameTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	reference := map[string]any{"client_reference": "ref-1"}
	v := gatewaytest.Decode(t, b.post(t, "key-1", gatewaytest.Purchase("12.34", reference)).body)
	if p := wantProblem(t, b.post(t, "key-1", gatewaytest.Purchase("12.35", reference)), 422, gateway.CodeKeyReuse); p.Resource != "" {
		t.Errorf("the first request's resource was shown: %+v", p)
	}
	p := wantProblem(t, b.post(t, "key-2", gatewaytest.Purchase("12.34", reference)), 409, gateway.CodeDuplicateReference)
	if p.Resource != "/v1/authorizations/"+v.ID.String() {
		t.Errorf("resource %q", p.Resource)
	}
	if n := b.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Errorf("%d requests reached the scheme", n)
	}
}

func TestRefusalsBeforeTheGateway(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, func(c *Config) { c.MaxBodyBytes = 2048 })
	valid := gatewaytest.Purchase("12.34", nil)
	json := []string{"Content-Type", "application/json"}
	keyed := append([]string{"Idempotency-Key", "key-1"}, json...)
	for _, c := range []struct {
		name   string
		pairs  []string
		query  string
		body   []byte
		status int
		code   gateway.Code
	}{
		{"no key", json, "", valid, 400, gateway.CodeKeyMissing},
		{"two keys", append([]string{"Idempotency-Key", "key-2"}, keyed...), "", valid, 400, gateway.CodeKeyMalformed},
		{"bad prefer", append([]string{"Prefer", "wait=soon"}, keyed...), "", valid, 400, gateway.CodeMalformedHeader},
		{"no content type", []string{"Idempotency-Key", "key-1"}, "", valid, 415, gateway.CodeUnsupportedMediaType},
		{"a query", keyed, "?wait=1", valid, 400, gateway.CodeMalformedParameter},
		{"too large", keyed, "", bytes.Repeat([]byte(" "), 2049), 413, gateway.CodeBodyTooLarge},
		{"no body", keyed, "", nil, 400, gateway.CodeMalformedBody},
		{"no JSON", keyed, "", []byte(`{"amount": 4111111111111111`), 400, gateway.CodeMalformedBody},
		{"an array", keyed, "", []byte(`[]`), 400, gateway.CodeMalformedBody},
		{"no link", keyed, "", gatewaytest.Purchase("12.34", map[string]any{"link": "nowhere"}), 422, gateway.CodeUnknownLink},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := b.do(t, http.MethodPost, "/v1/authorizations"+c.query, b.headers(c.pairs...), c.body)
			if p := wantProblem(t, a, c.status, c.code); p.Sent != gateway.SentNo {
				t.Errorf("sent %s", p.Sent)
			}
			if bytes.Contains(a.body, []byte("4111111111111111")) {
				t.Errorf("the answer quotes the body: %s", a.body)
			}
		})
	}
	if n := metric(t, b, "schemegate_requests_without_key_total"); n != 1 {
		t.Errorf("requests without key: %v, want 1", n)
	}
	if n := b.Count(t, `SELECT count(*) FROM idempotency_claim`); n != 0 {
		t.Errorf("%d claims are left by refusals", n)
	}
}

func TestEveryFieldFaultAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	a := b.post(t, "key-1", []byte(`{"client_reference":"r1","type":"gift","amount":10.5,"currency":"EUR","card":{"pan":"4111","colour":"red"},
		"merchant":{"terminal_id":"T"},"pos":{"entry_mode":"051","condition_code":"00"},"surprise":1}`))
	p := wantProblem(t, a, 422, gateway.CodeValidationFailed)
	got := map[string]bool{}
	for _, f := range p.Faults {
		got[f.Field] = true
	}
	for _, field := range []string{"type", "amount", "card.pan", "card.colour", "merchant.acceptor_id", "surprise"} {
		if !got[field] {
			t.Errorf("no fault names %s: %s", field, a.body)
		}
	}
}

func TestListsArePagedNewestFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	var want []uuid.UUID
	for _, key := range []string{"k1", "k2", "k3"} {
		v := gatewaytest.Decode(t, b.post(t, key, gatewaytest.Purchase("1.00", nil)).body)
		want = append([]uuid.UUID{v.ID}, want...)
	}
	path, pages := "/v1/authorizations?limit=2", 0
	var got []uuid.UUID
	for more := true; more; pages++ {
		p := decode[page[gatewaytest.View]](t, b.get(t, path).body)
		for _, item := range p.Items {
			got = append(got, item.ID)
		}
		if more = p.NextCursor != nil; more {
			path = "/v1/authorizations?limit=2&cursor=" + *p.NextCursor
		}
	}
	if pages != 2 || len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Fatalf("got %v in %d pages, want %v in 2", got, pages, want)
	}
}

func TestParametersAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	a := b.get(t, "/v1/authorizations?limit=0&stan=12&rrn=4111111111111111&state=lost&cursor=x&colour=red&4111111111111111=1")
	p := wantProblem(t, a, 400, gateway.CodeMalformedParameter)
	got := map[string]bool{}
	for _, f := range p.Faults {
		got[f.Field] = true
	}
	for _, field := range []string{"limit", "stan", "rrn", "state", "cursor", "colour", "(unprintable)"} {
		if !got[field] {
			t.Errorf("no fault names %s: %s", field, a.body)
		}
	}
	if bytes.Contains(a.body, []byte("4111111111111111")) {
		t.Errorf("the answer quotes the query: %s", a.body)
	}
	for _, path := range []string{"/v1/authorizations?limit=1&limit=2", "/v1/authorizations?state=%zz", "/v1/links?x=1",
		"/v1/ledger/accounts?cursor=!", "/v1/ledger/accounts?limit=501", "/v1/exceptions?cursor=AAAA"} {
		wantProblem(t, b.get(t, path), 400, gateway.CodeMalformedParameter)
	}
	for _, path := range []string{"/v1/authorizations/nothing", "/v1/authorizations/" + uuid.NewString(), "/v1/authorizations/{" + uuid.NewString() + "}",
		"/v1/ledger/accounts/0/balance", "/v1/ledger/accounts/99999999999/entries", "/v1/ledger/accounts/x/balance"} {
		wantProblem(t, b.get(t, path), 404, gateway.CodeNotFound)
	}
}

func TestSlowBodyIsRefusedAndSlowAnswerIsNot(t *testing.T) {
	t.Parallel()
	const bodyTimeout = 100 * time.Millisecond // less than the scheme's silence lasts
	b := setup(t, gatewaytest.Options{}, func(c *Config) { c.BodyTimeout = configs.Duration(bodyTimeout) })
	if a := b.post(t, "key-1", gatewaytest.Purchase("10.91", nil)); a.status != 201 {
		t.Fatalf("an answer later than the body's time limit: %d %s", a.status, a.body)
	}
	conn, err := net.Dial("tcp", b.api.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/authorizations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+b.key+
		"\r\nIdempotency-Key: key-2\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(stopLimit)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn) // to the end: the server closes the connection too
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), "HTTP/1.1 408 ") || !strings.Contains(string(text), `"code":"request_timeout"`) {
		t.Fatalf("got %s", text)
	}
}

func TestCallerWhoLeavesEndsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	body := gatewaytest.Purchase("10.91", nil)
	ctx, leave := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/authorizations", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = b.headers("Idempotency-Key", "key-1", "Content-Type", "application/json")
	left := make(chan error, 1)
	go func() {
		_, err := b.client.Do(r)
		left <- err
	}()
	b.Eventually(t, "the request is on the wire", func() bool { return b.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	leave()
	if err := <-left; err == nil {
		t.Fatal("the caller did not leave")
	}
	if a := b.post(t, "key-1", body, "Prefer", "wait=10"); a.status != 201 || gatewaytest.Decode(t, a.body).State != "timed_out" {
		t.Fatalf("the repeat got %d %s", a.status, a.body)
	}
	if n := b.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
}

func TestShutdownFinishesWhatItHas(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	got := make(chan answer, 1)
	go func() { got <- b.post(t, "key-1", gatewaytest.Purchase("10.91", nil)) }()
	b.Eventually(t, "the request is on the wire", func() bool { return b.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	b.stop()
	if a := <-got; a.status != 201 || gatewaytest.Decode(t, a.body).State != "timed_out" {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	if conn, err := net.DialTimeout("tcp", b.api.Addr().String(), time.Second); err == nil {
		conn.Close()
		t.Fatal("the API still takes connections")
	}
}
