package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/ledger"
)

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// metric reads a counter or gauge without labels.
func metric(t *testing.T, b *bench, name string) float64 {
	t.Helper()
	families, err := b.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestRefusalsOfTheRouter(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	for _, path := range []string{"/", "/v1", "/v1/nothing", "/v1/authorizations/", "/v1//authorizations", "/v1/links/../links", "/docs/", "/metrics"} {
		wantProblem(t, b.get(t, path), 404, gateway.CodeNotFound)
	}
	for path, method := range map[string]string{"/v1/authorizations": http.MethodDelete, "/v1/links": http.MethodPost, "/openapi.json": http.MethodPut} {
		a := b.do(t, method, path, b.headers(), nil)
		wantProblem(t, a, 405, gateway.CodeMethodNotAllowed)
		if !strings.Contains(a.header.Get("Allow"), "GET") {
			t.Errorf("%s %s: Allow %q", method, path, a.header.Get("Allow"))
		}
	}
	for _, path := range []string{"/v1/authorizations", "/v1/authorizations/" + uuid.NewString(), "/v1/links", "/v1/exceptions", "/v1/ledger/accounts"} {
		a := b.getAs(t, "sgk_wrong", path)
		wantProblem(t, a, 401, gateway.CodeUnauthenticated)
		if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate %q", path, a.header.Get("WWW-Authenticate"))
		}
	}
}

func TestBooksOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	before := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	v := gatewaytest.Decode(t, b.post(t, "key-1", gatewaytest.Purchase("12.34", map[string]any{"client_reference": "ref-1"})).body)
	var customer accountBody
	for _, a := range decode[page[accountBody]](t, b.get(t, "/v1/ledger/accounts").body).Items {
		if a.Kind == ledger.Customer {
			customer = a
		}
	}
	if customer.Link != gatewaytest.LinkName || customer.Currency != "EUR" || customer.Normal != ledger.CreditSide {
		t.Fatalf("customer account %+v", customer)
	}
	path := "/v1/ledger/accounts/" + itoa(customer.ID)
	balance := decode[balanceBody](t, b.get(t, path+"/balance").body)
	if balance.Held != "12.34" || balance.Posted != "0.00" || balance.Available != "-12.34" || balance.At != nil {
		t.Fatalf("balance %+v", balance)
	}
	if old := decode[balanceBody](t, b.get(t, path+"/balance?at="+before).body); old.Held != "0.00" || old.At == nil {
		t.Fatalf("balance an hour ago %+v", old)
	}
	wantProblem(t, b.get(t, path+"/balance?at=yesterday"), 400, gateway.CodeMalformedParameter)
	entries := decode[page[entryBody]](t, b.get(t, path+"/entries").body).Items
	if len(entries) != 1 {
		t.Fatalf("entries %+v", entries)
	}
	e := entries[0]
	if e.Key != v.ID.String()+":0:hold:1" || e.Side != ledger.DebitSide || e.Amount != "12.34" || e.Layer != "pending" || e.Step != "hold" ||
		e.ClientReference != "ref-1" || e.Resource != "/v1/authorizations/"+v.ID.String() || e.OtherAccount == customer.ID {
		t.Fatalf("entry %+v", e)
	}
}

func TestLinksAndExceptionsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	links := decode[page[linkBody]](t, b.get(t, "/v1/links").body).Items
	if len(links) != 1 || links[0].Name != gatewaytest.LinkName || !links[0].SignedOn || links[0].State != "signed_on" {
		t.Fatalf("links %+v", links)
	}
	if list := decode[page[gateway.Exception]](t, b.get(t, "/v1/exceptions").body); len(list.Items) != 0 || list.Items == nil {
		t.Fatalf("exceptions %+v", list)
	}
	ids := make([]uuid.UUID, 3)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
		_, err := b.DB.Pool.Exec(t.Context(), `INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
			VALUES ($1, 'reversal_unacknowledged', $2, $3, $4, 'ten attempts', now())`, ids[i], gatewaytest.Tenant, gatewaytest.LinkName, uuid.New())
		if err != nil {
			t.Fatal(err)
		}
	}
	first := decode[page[gateway.Exception]](t, b.get(t, "/v1/exceptions?limit=2").body)
	if len(first.Items) != 2 || first.Items[0].ID != ids[2] || first.NextCursor == nil {
		t.Fatalf("first page %+v", first)
	}
	second := decode[page[gateway.Exception]](t, b.get(t, "/v1/exceptions?limit=2&cursor="+*first.NextCursor).body)
	if len(second.Items) != 1 || second.Items[0].ID != ids[0] || second.NextCursor != nil {
		t.Fatalf("second page %+v", second)
	}
	if list := decode[page[gateway.Exception]](t, b.getAs(t, b.other, "/v1/exceptions").body); len(list.Items) != 0 {
		t.Fatalf("the other tenant sees %+v", list)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, func(c *Config) { c.MaxConnections = 1 })
	held, err := net.Dial("tcp", b.api.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	b.Eventually(t, "the connection counts", func() bool { return metric(t, b, "schemegate_http_connections") == 1 })
	further, err := net.Dial("tcp", b.api.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer further.Close()
	if err := further.SetReadDeadline(time.Now().Add(stopLimit)); err != nil {
		t.Fatal(err)
	}
	if n, err := further.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("read %d bytes from a connection too many", n)
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		t.Fatal("a connection too many stays open")
	}
	held.Close()
	b.Eventually(t, "there is room again", func() bool { return metric(t, b, "schemegate_http_connections") == 0 })
	if a := b.get(t, "/v1/links"); a.status != 200 {
		t.Fatalf("got %d", a.status)
	}
	if n := metric(t, b, "schemegate_http_connections_refused_total"); n < 1 {
		t.Fatalf("refused connections: %v", n)
	}
}

// TestS86_PanicShowsNoValue lets a handler panic with card data and looks for it everywhere it could come out.
func TestS86_PanicShowsNoValue(t *testing.T) {
	t.Parallel()
	const canary = "4000000000000002"
	core, logs := observer.New(zapcore.DebugLevel)
	a := &API{config: DefaultConfig(), mux: http.NewServeMux(), log: zap.New(core),
		metrics: newMetrics(prometheus.NewRegistry(), func() float64 { return 0 })}
	a.mux.HandleFunc("POST /panic", func(http.ResponseWriter, *http.Request) { panic(canaryValue(canary)) })
	a.mux.HandleFunc("POST /index", func(http.ResponseWriter, *http.Request) { _ = []byte(canary)[len(logs.All())+99] })
	for _, path := range []string{"/panic", "/index"} {
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(canary)))
		if w.Code != 500 || !strings.Contains(w.Body.String(), `"code":"internal_after_recorded"`) || strings.Contains(w.Body.String(), canary) {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	text := logText(t, logs)
	if strings.Contains(text, canary) {
		t.Fatalf("the log shows the panic's value: %s", text)
	}
	for _, want := range []string{"api.canaryValue", "index out of range", "TestS86_PanicShowsNoValue"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not show %s: %s", want, text)
		}
	}
}

type canaryValue string

func logText(t *testing.T, logs *observer.ObservedLogs) string {
	t.Helper()
	var text strings.Builder
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	for _, entry := range logs.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(line.Bytes())
	}
	return text.String()
}

// TestS86_CanariesLeaveNoTraceInLogs sends card data everywhere a client can put it.
func TestS86_CanariesLeaveNoTraceInLogs(t *testing.T) {
	t.Parallel()
	const pan, track, pin = "5555555555554444", "5555555555554444=29121010000012345678", "1A2B3C4D5E6F7788"
	b := setup(t, gatewaytest.Options{}, nil)
	card := map[string]any{"card": map[string]any{"pan": pan, "track2": track, "pin_block": pin}}
	answers := []answer{
		b.post(t, "key-1", gatewaytest.Purchase("12.34", card)),
		b.post(t, "key-2", gatewaytest.Purchase("10.91", card)),
		b.post(t, "key-3", gatewaytest.Purchase("bad", card)),
		b.post(t, "key-4", []byte(`{"card": {"pan": "`+pan+`", "`+pan+`": "`+track+`"}, "`+pin+`": 1`)),
		b.post(t, "key-"+pan, gatewaytest.Purchase("12.34", card)),
		b.post(t, "key-5", gatewaytest.Purchase("12.34", card), "Prefer", "wait="+pan),
		b.get(t, "/v1/authorizations/"+pan),
		b.get(t, "/v1/"+track),
		b.get(t, "/v1/authorizations?rrn="+pan+"&"+pan+"=1"),
		b.getAs(t, pan, "/v1/links"),
	}
	text := logText(t, b.logs) + logText(t, b.Logs)
	for _, a := range answers {
		text += string(a.body)
		for name, values := range a.header {
			text += name + strings.Join(values, "")
		}
	}
	families, err := b.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text += fmt.Sprint(families)
	for _, canary := range []string{pan, track, pin} {
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("%s came out: …%s…", canary, text[max(0, i-100):min(len(text), i+60)])
		}
	}
	if !strings.Contains(text, "request answered") {
		t.Error("nothing was logged, so nothing was looked at")
	}
}

func TestDocumentTellsTheTruth(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	silent := b.post(t, "key-1", gatewaytest.Purchase("10.91", map[string]any{"order_reference": "order-1"}))
	b.AwaitState(t, gatewaytest.Decode(t, silent.body).ID, "reversed")
	approved := b.post(t, "key-2", gatewaytest.Purchase("12.34", nil))
	spec := b.do(t, http.MethodGet, "/openapi.json", http.Header{}, nil)
	document := decode[map[string]any](t, spec.body)
	if spec.status != 200 || document["openapi"] != "3.1.0" {
		t.Fatalf("got %d, openapi %v", spec.status, document["openapi"])
	}
	paths := document["paths"].(map[string]any)
	for _, rt := range b.api.routes() {
		item, ok := paths[rt.operation.Path].(map[string]any)
		if !ok || item[strings.ToLower(rt.operation.Method)] == nil {
			t.Errorf("%s %s is not documented", rt.operation.Method, rt.operation.Path)
		}
	}
	for _, ref := range regexp.MustCompile(`#/components/schemas/(\w+)`).FindAllSubmatch(spec.body, -1) {
		if schemas()[string(ref[1])] == nil {
			t.Errorf("the document points to %s, which is not there", ref[1])
		}
	}
	for name := range schemas() {
		if !bytes.Contains(spec.body, []byte(`"`+schemaPrefix+name+`"`)) {
			t.Errorf("nothing in the document points to %s", name)
		}
	}
	var read []byte
	for _, a := range decode[page[accountBody]](t, b.get(t, "/v1/ledger/accounts").body).Items {
		read = b.get(t, "/v1/ledger/accounts/"+itoa(a.ID)+"/balance").body
		holdsAgainst(t, "Balance", read)
		for _, e := range decode[page[json.RawMessage]](t, b.get(t, "/v1/ledger/accounts/"+itoa(a.ID)+"/entries").body).Items {
			holdsAgainst(t, "Entry", e)
		}
	}
	holdsAgainst(t, "Authorization", silent.body)
	holdsAgainst(t, "Authorization", approved.body)
	holdsAgainst(t, "Problem", b.post(t, "key-3", []byte(`{"x":1}`)).body)
	holdsAgainst(t, "Link", decode[page[json.RawMessage]](t, b.get(t, "/v1/links").body).Items[0])
	holdsAgainst(t, "Account", decode[page[json.RawMessage]](t, b.get(t, "/v1/ledger/accounts").body).Items[0])
	if _, err := gateway.ParseAuthorizationRequest(encode(t, exampleRequest())); err != nil {
		t.Errorf("the example is refused: %v", err)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// holdsAgainst checks a real body against a schema: no member that is not declared, none missing that is required.
func holdsAgainst(t *testing.T, name string, body []byte) {
	t.Helper()
	holdsAgainstSchema(t, name, schemas()[name], decode[map[string]any](t, body))
}

func holdsAgainstSchema(t *testing.T, at string, schema *huma.Schema, object map[string]any) {
	t.Helper()
	if schema.Ref != "" {
		schema = schemas()[strings.TrimPrefix(schema.Ref, schemaPrefix)]
	}
	for member, value := range object {
		property := schema.Properties[member]
		if property == nil {
			t.Errorf("%s.%s is not in the document", at, member)
			continue
		}
		if inner, ok := value.(map[string]any); ok {
			holdsAgainstSchema(t, at+"."+member, property, inner)
		}
		if word, ok := value.(string); ok && len(property.Enum) > 0 && !slices.Contains(property.Enum, any(word)) {
			t.Errorf("%s.%s is %q, which the document does not list", at, member, word)
		}
		if value == nil && !property.Nullable {
			t.Errorf("%s.%s is null, and the document says it is not", at, member)
		}
	}
	for _, member := range schema.Required {
		if _, there := object[member]; !there {
			t.Errorf("%s.%s is missing and required", at, member)
		}
	}
}

func TestSchemasNameTheFieldsOfTheirStructs(t *testing.T) {
	t.Parallel()
	all := schemas()
	for name, v := range map[string]any{"AuthorizationRequest": gateway.AuthorizationRequest{}, "Reversal": gateway.ReversalView{},
		"Link": linkBody{}, "Exception": gateway.Exception{}, "Account": accountBody{}, "Balance": balanceBody{}, "Entry": entryBody{},
		"CaptureRequest": gateway.CaptureRequest{}, "ReversalRequest": gateway.ReversalRequest{}, "Duty": gateway.DutyView{}, "LinkRequest": gateway.LinkRequest{},
		"Duplicate": gateway.Duplicate{}, "Timeline": gateway.Timeline{}, "TimelineStep": gateway.TimelineStep{}, "NextStep": gateway.NextStep{}} {
		sameMembers(t, name, reflect.TypeOf(v), all[name])
	}
}

func sameMembers(t *testing.T, at string, structure reflect.Type, schema *huma.Schema) {
	t.Helper()
	var members []string
	for i := range structure.NumField() {
		name, _, _ := strings.Cut(structure.Field(i).Tag.Get("json"), ",")
		if structure.Field(i).Anonymous {
			embedded := structure.Field(i).Type
			for n := range embedded.NumField() {
				inner, _, _ := strings.Cut(embedded.Field(n).Tag.Get("json"), ",")
				members = append(members, inner)
				if schema.Properties[inner] == nil {
					t.Errorf("%s.%s is not in the document", at, inner)
				}
			}
			continue
		}
		if name == "" || name == "-" {
			continue
		}
		members = append(members, name)
		property := schema.Properties[name]
		if property == nil {
			t.Errorf("%s.%s is not in the document", at, name)
		} else if inner := structure.Field(i).Type; inner.Kind() == reflect.Struct && len(property.Properties) > 0 {
			sameMembers(t, at+"."+name, inner, property)
		}
	}
	for name := range schema.Properties {
		if !slices.Contains(members, name) {
			t.Errorf("%s.%s is in the document only", at, name)
		}
	}
}

func TestDocsPageStandsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	a := b.do(t, http.MethodGet, "/docs", http.Header{}, nil)
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		t.Fatalf("got %d %v", a.status, a.header)
	}
	if found := regexp.MustCompile(`(?i)<script|https?://|@import|<link`).Find(a.body); found != nil {
		t.Errorf("the page needs %q", found)
	}
	for _, want := range []string{"/v1/authorizations", "/v1/ledger/accounts/{account}/entries", "/v1/track/{reference}", "/v1/authorizations/{id}/captures/{capture}",
		"/v1/links/{name}/sign-off", "reversed_before", "idempotency_key_reuse", "Idempotency-Key", "timed_out"} {
		if !bytes.Contains(a.body, []byte(want)) {
			t.Errorf("the page does not speak of %s", want)
		}
	}
}

func TestAddressInUseIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	config := DefaultConfig()
	config.Listen = taken.Addr().String()
	if _, err := New(config, nil, nil, zap.NewNop(), prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), "listen for the API") {
		t.Fatalf("got %v", err)
	}
}

func TestConfigFaultsNameTheirKeys(t *testing.T) {
	t.Parallel()
	_, key, err := NewKey("bank-a", "core")
	if err != nil {
		t.Fatal(err)
	}
	good := DefaultConfig()
	good.Keys = []Key{key}
	var none configs.Faults
	good.Validate("api", &none)
	if err := none.Err(); err != nil {
		t.Fatalf("the default with a key: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"api.listen":           func(c *Config) { c.Listen = "8480" },
		"api.keys":             func(c *Config) { c.Keys = nil },
		"api.keys.0.tenant":    func(c *Config) { c.Keys = []Key{{Tenant: "Bank A", Name: "core", SHA256: key.SHA256}} },
		"api.keys.0.name":      func(c *Config) { c.Keys = []Key{{Tenant: "bank-a", SHA256: key.SHA256}} },
		"api.keys.0.sha256":    func(c *Config) { c.Keys = []Key{{Tenant: "bank-a", Name: "core", SHA256: "sgk_canary"}} },
		"api.keys.1.sha256":    func(c *Config) { c.Keys = []Key{key, {Tenant: "bank-b", Name: "core", SHA256: key.SHA256}} },
		"api.max_connections":  func(c *Config) { c.MaxConnections = 0 },
		"api.max_body_bytes":   func(c *Config) { c.MaxBodyBytes = 1 << 20 },
		"api.max_header_bytes": func(c *Config) { c.MaxHeaderBytes = 1 },
		"api.header_timeout":   func(c *Config) { c.HeaderTimeout = 0 },
		"api.body_timeout":     func(c *Config) { c.BodyTimeout = configs.Duration(time.Hour) },
		"api.write_timeout":    func(c *Config) { c.WriteTimeout = 0 },
		"api.idle_timeout":     func(c *Config) { c.IdleTimeout = 0 },
	} {
		config := good
		change(&config)
		var faults configs.Faults
		config.Validate("api", &faults)
		if len(faults) != 1 || faults[0].Path != want {
			t.Errorf("%s: got %v", want, faults)
		}
		if strings.Contains(faults.Error(), "sgk_canary") {
			t.Errorf("%s: a key is quoted: %v", want, faults)
		}
	}
}
