package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zapcore"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// The canaries: what must be found nowhere. No other test uses them, since all share one server's files.
const (
	canaryPAN     = "4000000760000002"
	canaryMasked  = "400000******0002"
	canaryTrack   = "918273645091827" // discretionary data of track 2
	canaryPIN     = "A1B2C3D4E5F60718"
	canaryCrypto  = "DEADBEEFCAFEF00D" // application cryptogram in the ICC data
	canaryCVV     = "CVV2-739184"
	canaryElement = "92" + canaryCVV
)

var canaries = []string{canaryPAN, canaryTrack, canaryPIN, canaryCrypto, canaryCVV}

// forms are the ways a secret could be written down: clear, hexadecimal, and base64 at each of its three alignments.
func forms(secret string) [][]byte {
	plain := [][]byte{[]byte(secret)}
	if raw, err := hex.DecodeString(secret); err == nil && len(raw) >= 6 {
		plain = append(plain, raw, []byte(strings.ToLower(secret)))
	}
	var all [][]byte
	for _, p := range plain {
		digits := hex.EncodeToString(p)
		all = append(all, p, []byte(digits), []byte(strings.ToUpper(digits)))
		for shift := range 3 {
			encoded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), p...))
			all = append(all, []byte(encoded[(shift*8+5)/6:(shift+len(p))*8/6])) // the characters that are the secret's alone
		}
	}
	return all
}

// holds tells whether a text holds a secret in any of its forms.
func holds(text, secret string) bool {
	for _, form := range forms(secret) {
		if bytes.Contains([]byte(text), form) {
			return true
		}
	}
	return false
}

// mustHoldNoCanary searches one output.
func mustHoldNoCanary(t *testing.T, where, text string) {
	t.Helper()
	for _, canary := range canaries {
		for _, form := range forms(canary) {
			if i := strings.Index(text, string(form)); i >= 0 {
				t.Errorf("%s holds %s as %q at %d: %q", where, canary, form, i, text[max(0, i-64):min(len(text), i+64)])
			}
		}
	}
}

func TestFormsFindASecretHoweverItIsWrittenDown(t *testing.T) {
	t.Parallel()
	for _, secret := range canaries {
		for shift := range 4 {
			text := strings.Repeat("x", shift) + secret + "tail"
			for _, written := range []string{text, hex.EncodeToString([]byte(text)), fmt.Sprintf("%X", text), base64.StdEncoding.EncodeToString([]byte(text))} {
				if !holds(written, secret) {
					t.Errorf("%s is not found in %s", secret, written)
				}
			}
		}
	}
	if holds("400000******0002 DE52=present", canaryPAN) {
		t.Error("finds what is not there")
	}
}

// canaryRequest is a purchase with every kind of sensitive data.
func canaryRequest(amount string, changes map[string]any) []byte {
	body := map[string]any{"elements": map[string]any{"48": canaryElement, "126": canaryElement}, "card": map[string]any{"pan": canaryPAN, "expiry": "2912", "sequence_number": "001",
		"track2": canaryPAN + "=2912101" + canaryTrack[:13], "pin_block": canaryPIN, "icc": "9F2608" + canaryCrypto}}
	for name, value := range changes {
		body[name] = value
	}
	return gatewaytest.Purchase(amount, body)
}

// watch is what the canaries are searched in.
type watch struct {
	stand    *gatewaytest.Stand
	owner    *pgx.Conn
	firstWAL string

	mu    sync.Mutex // protects the following
	heard []string   // all that callers were told, errors as they would be logged included
}

func newWatch(t *testing.T, s *gatewaytest.Stand) *watch {
	t.Helper()
	w := &watch{stand: s}
	var err error
	if w.owner, err = pgx.Connect(t.Context(), s.DB.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.owner.Close(context.Background()) })
	if err := w.owner.QueryRow(t.Context(), `SELECT pg_walfile_name(pg_current_wal_lsn())`).Scan(&w.firstWAL); err != nil {
		t.Fatal(err)
	}
	return w
}

// send makes a request and keeps what the caller is told.
func (w *watch) send(t *testing.T, key string, body []byte) gateway.Answer {
	answer, err := w.stand.Authorize(t, key, body)
	told := string(answer.Body)
	if err != nil {
		told += fmt.Sprintf("%v %+v %#v ", err, err, err) + string(gateway.AsError(err).Problem())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, told)
	return answer
}

// search looks into everything the gateway wrote anywhere.
func (w *watch) search(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	mustHoldNoCanary(t, "what callers heard", strings.Join(w.heard, "\n"))
	w.mu.Unlock()
	w.searchLogs(t)
	families, err := w.stand.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	mustHoldNoCanary(t, "metrics", fmt.Sprint(families))
	mustHoldNoCanary(t, "link status", fmt.Sprintf("%+v", w.stand.Gateway.Links()))
	w.searchTables(t)
	w.searchFiles(t)
}

func (w *watch) searchLogs(t *testing.T) {
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg", StacktraceKey: "stack"})
	for _, entry := range w.stand.Logs.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		mustHoldNoCanary(t, "log: "+entry.Message, line.String()+fmt.Sprintf("%+v", entry.ContextMap()))
	}
}

var byteaText = regexp.MustCompile(`\\x([0-9a-f]+)`)

// searchTables reads every table as text, and every binary value as its bytes.
func (w *watch) searchTables(t *testing.T) {
	rows, err := w.owner.Query(t.Context(), `SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables
		WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 12 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	seen := false
	for _, table := range tables {
		rows, err := w.owner.Query(t.Context(), `SELECT coalesce(t::text, '') FROM `+table+` t`)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(texts, "\n")
		for _, match := range byteaText.FindAllStringSubmatch(all, -1) {
			if raw, err := hex.DecodeString(match[1]); err == nil {
				all += "\n" + string(raw)
			}
		}
		mustHoldNoCanary(t, "table "+table, all)
		seen = seen || strings.Contains(all, canaryMasked)
	}
	if !seen {
		t.Error("the masked number is in no table, so the search proves nothing")
	}
}

// searchFiles reads the server's own files: this database's, the write-ahead log since the test began, and the rest but the
// other databases. A server that is not the tests' own is left alone.
func (w *watch) searchFiles(t *testing.T) {
	var dir, database string
	if err := w.owner.QueryRow(t.Context(), `SELECT current_setting('data_directory'), oid::text FROM pg_database WHERE datname = current_database()`).Scan(&dir, &database); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "base", database)); err != nil {
		t.Logf("files of the server are not searched: %v", err)
		return
	}
	if _, err := w.owner.Exec(t.Context(), `CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
	files, seen := 0, map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another test's database was dropped
			return nil
		case err != nil:
			return err
		case entry.IsDir() && filepath.Base(filepath.Dir(path)) == "base" && entry.Name() != database:
			return fs.SkipDir
		case !entry.Type().IsRegular(), strings.Contains(path, "/pg_wal/") && entry.Name() < w.firstWAL:
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files++
		mustHoldNoCanary(t, "file "+strings.TrimPrefix(path, dir), string(content))
		if bytes.Contains(content, []byte(canaryMasked)) {
			seen[filepath.Base(filepath.Dir(path))] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !seen["pg_wal"] || !seen[database] {
		t.Errorf("the masked number is not in the log and the tables of %d files, so the search proves nothing", files)
	}
}

// reflecting makes the scheme put card data where it has none to put.
func reflecting(amount, code string) sim.Rule {
	action := sim.Action{Set: map[iso8583.Element]string{44: canaryPAN, 48: canaryElement, 63: canaryPAN + "=" + canaryTrack, 126: canaryElement, iso8583.CardAcceptorNameLocation: "AT " + canaryPAN + strings.Repeat(" ", 21)}}
	if code != "00" {
		action.Answer, action.ResponseCode = sim.AnswerDecline, code
	}
	return sim.Rule{When: sim.Match{Amount: amount}, Then: action}
}

func TestS86_S88_CanariesAreNowhere(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(reflecting("30.00", "00"), reflecting("30.05", "05"), reflecting("30.09", "Z9")),
		Link: func(l *gateway.LinkConfig) { l.StoredElements = []iso8583.Element{104} }})
	w := newWatch(t, s)
	amounts := [][]string{{"20.00", "10.05", "10.10", "10.69", "10.80", "10.81", "10.82", "10.83", "10.84", "10.85", "10.86", "10.87", "10.89", "10.90", "10.91", "10.92", "10.93",
		"10.94", "10.95", "10.98", "30.00", "30.05", "30.09"}, {"10.96"}, {"10.97"}} // the last two hang up
	for _, wave := range amounts {
		s.AwaitSignedOn(t)
		var sending sync.WaitGroup
		for _, amount := range wave {
			sending.Go(func() {
				body := canaryRequest(amount, nil)
				w.send(t, "key-"+amount, body)
				w.send(t, "key-"+amount, body)
				w.send(t, "key-"+amount, changed(t, body, map[string]any{"amount": "77.00"}))
				w.send(t, "other-"+amount, body)
			})
		}
		sending.Wait()
		s.Eventually(t, "late answers kept", func() bool { return s.Count(t, `SELECT count(*) FROM message WHERE kind = 'late'`) >= 2 })
	}
	s.AwaitSignedOn(t)
	for _, changes := range []map[string]any{
		{"client_reference": canaryPAN}, {"client_reference": "x" + canaryPAN + "9"}, {"order_reference": canaryPAN}, {"type": canaryCVV}, {"currency": canaryPAN}, {"link": canaryPAN}, {"acquirer_id": canaryPAN},
		{canaryPAN: canaryPAN}, {"elements": map[string]any{"48": strings.Repeat(canaryElement, 100)}}, {"elements": map[string]any{"53": canaryCVV}}, {"elements": map[string]any{canaryPAN: canaryCVV}},
		{"elements": map[string]any{"104": canaryPAN}}, {"elements": map[string]any{"96": canaryCVV}},
		{"card": map[string]any{"pan": canaryPAN + canaryPAN, "track2": canaryTrack, "pin_block": canaryPIN + "0", "icc": canaryCrypto}},
		{"merchant": map[string]any{"terminal_id": canaryPAN, "acceptor_id": canaryPAN, "name_location": "AT " + canaryPAN}}, {"card": canaryPAN},
	} {
		w.send(t, "refused", canaryRequest("20.00", changes))
	}
	w.send(t, "refused", []byte(`{"card":{"pan":"`+canaryPAN+`","pan":"`+canaryPAN))
	w.send(t, "key "+canaryPAN, canaryRequest("20.00", nil))
	s.Eventually(t, "reversals settled", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE state = 'owed'`) == 0 && s.Count(t, `SELECT count(*) FROM duty`) > 10
	})
	w.search(t)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	w.searchLogs(t)
}

// hostile is a peer that signs on and then answers every request with bytes that are no message but hold card data.
func hostile(t *testing.T) (address string) {
	t.Helper()
	framing, err := iso8583.DefaultFramingConfig().Build()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spec := iso8583.Spec1987(iso8583.BitmapBinary)
	var serving sync.WaitGroup
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	var answered int
	garbage := []string{"0110" + canaryPAN, "0110\xff\xff\xff\xff\xff\xff\xff\xff" + canaryPAN + canaryTrack + canaryCVV, canaryPAN + canaryCVV, "0110\x40\x00\x00\x00\x00\x00\x00\x0019" + canaryPAN + "x" + canaryCVV, "\x00\x00" + canaryElement}
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(conn)
			for {
				body, err := framing.Read(reader, nil)
				if err != nil {
					break
				}
				reply := []byte(garbage[answered%len(garbage)])
				if m, err := spec.Decode(body); err == nil && m.MTI().Class() == 8 {
					m.SetMTI(m.MTI().Response())
					_ = m.Set(iso8583.ResponseCode, "00")
					reply, _ = spec.Encode(m)
				} else {
					answered++
				}
				frame, _ := framing.Append(nil, reply)
				if _, err := conn.Write(frame); err != nil {
					break
				}
			}
			conn.Close()
		}
	})
	return listener.Addr().String()
}

func TestS86_GarbageFromThePeerLeaksNothing(t *testing.T) {
	t.Parallel()
	address := hostile(t)
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Address = address }})
	w := newWatch(t, s)
	for i := range 5 {
		s.AwaitSignedOn(t)
		w.send(t, fmt.Sprintf("key-%d", i), canaryRequest("20.00", nil))
	}
	if n := s.Count(t, `SELECT count(*) FROM message WHERE kind = 'malformed'`); n == 0 {
		t.Error("no garbage was kept, so the test proves nothing")
	}
	if n := s.Count(t, `SELECT count(*) FROM card_authorization WHERE state IN ('approved', 'declined')`); n != 0 {
		t.Errorf("%d decided by garbage", n)
	}
	w.search(t)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	w.searchLogs(t)
}

// Nothing sensitive is stored, and yet the reversal goes out after a restart with the card number of its original.
func TestS88_ReversalAfterARestartHasItsCardNumber(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}, sim.Rule{When: sim.Match{MTI: reversals}, Then: lost})})
	w := newWatch(t, s)
	v := gatewaytest.Decode(t, w.send(t, "key-1", canaryRequest("20.00", nil)).Body)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	w.searchLogs(t)
	w.searchTables(t)
	setRules(t, s, sim.Rule{Name: "that very card", When: sim.Match{MTI: reversals, PANPrefix: canaryPAN}})
	s.Start(t)
	s.AwaitState(t, v.ID, "reversed")
	undone := s.Received(iso8583.MTIReversalAdvice, iso8583.MTIReversalAdvice.Repeat())
	last := undone[len(undone)-1]
	if last.Rule != "that very card" || last.STAN != v.STAN || last.RRN != v.RRN || last.OriginalDataElements[:10] != "0100"+v.STAN {
		t.Fatalf("reversal %+v of %+v", last, v)
	}
	if n := s.Count(t, `SELECT count(*) FROM message WHERE mti IN ('0420', '0421') AND image ~ 'DE(35|36|45|48|52|55|126)='`); n != 0 {
		t.Fatalf("%d reversals carry sensitive data", n)
	}
	w.search(t)
	s.CheckBooks(t)
}
