package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

// postTo posts JSON to a path of the API and gives the status and the body.
func (r *rig) postTo(url, key string, body any) (int, []byte) {
	r.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header = http.Header{"Authorization": {"Bearer " + r.key}, "Content-Type": {"application/json"}, "Idempotency-Key": {key}}
	response, err := r.client.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, answer
}

// knowing is the configuration of a daemon with the admin address that it really has, as one without port 0 names it.
func (r *rig) knowing(file string, d *rigProcess) string {
	r.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	known := strings.Replace(string(text), "admin: {listen: 127.0.0.1:0}", "admin: {listen: '"+strings.TrimPrefix(d.admin(), "http://")+"'}", 1)
	return writeFile(r.t, r.dir, "knowing-"+uuid.NewString()+".yaml", known)
}

func matches(t *testing.T, what, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(`(?m)` + pattern).MatchString(text) {
		t.Errorf("%s does not match %s:\n%s", what, pattern, text)
	}
}

// TestTrackPrintsTheTimeline, for people and for programs, beside a daemon and after it.
func TestTrackPrintsTheTimeline(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	d := r.serve(file)
	id := r.post(d.api(), "key-1", gatewaytest.Purchase("10.91", map[string]any{"client_reference": "order-1/a"})).view.ID
	r.eventually("the reversal is acknowledged", func() bool {
		_, body := r.fetch(d.api() + "/v1/authorizations/" + id)
		return strings.Contains(body, `"state":"reversed"`)
	})
	if status, body := r.postTo(d.api()+"/v1/reversals", "key-2", map[string]any{"client_reference": "order-2"}); status != 201 {
		t.Fatalf("reversal of nothing: %d %s", status, body)
	}
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Fatalf("exit %d", code)
	}
	text := r.must("track", "order-1/a", "--config", file)
	moment := `^  [0-9-]{10} [0-9:]{8}\.[0-9]{3}  `
	for _, want := range []string{
		`^purchase 10\.91 EUR over visa-a of [0-9-]{10}T[0-9:.]+Z: reversed, outcome failed, for [0-9ms]+$`,
		`^id ` + id + `, client_reference order-1/a$`,
		`^STAN [0-9]{6}, RRN [0-9]{12}, card 411111\*{6}1111; found by client_reference$`,
		moment + `state      pending$`,
		moment + `sent       -> 0100 committed for sending, STAN [0-9]{6}$`,
		moment + `state      pending -> timed_out, timeout, code 91$`,
		moment + `told       answer stored for the caller: 201, timed_out$`,
		moment + `posted     release 10\.91 EUR, layer pending, debit settlement, credit customer$`,
		moment + `received   <- 0430 response \[reversal\], STAN [0-9]{6}, code 00$`,
		`^next: nothing \(nobody\)$`,
	} {
		matches(t, "track", text, want)
	}
	var found []gateway.Timeline
	if err := json.Unmarshal([]byte(r.must("track", id, "--json", "--tenant", gatewaytest.Tenant, "--config", file)), &found); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].FoundBy != "id" || len(found[0].Steps) < 10 || found[0].Next.Owner != "nobody" {
		t.Errorf("in JSON %+v", found)
	}
	early := r.must("track", "order-2", "--config", file)
	for _, want := range []string{`^a reversal whose authorization has not come; found by client_reference$`, moment + `state      recorded before the authorization came, customer_cancellation \[reversal\]$`,
		`^next: nothing: the authorization is refused if it comes \(nobody\)$`} {
		matches(t, "track of what came first", early, want)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown":        {[]string{"order-3"}, exitFault, "nothing is known under this reference"},
		"unknown, JSON":  {[]string{"order-3", "--json"}, exitFault, "nothing is known under this reference"},
		"another tenant": {[]string{"order-1/a", "--tenant", "bank-b"}, exitFault, "nothing is known under this reference"},
		"no reference":   {[]string{"two words"}, exitFault, "1 to 64 printable characters"},
	} {
		code, stdout, stderr := command(t, append([]string{"track", "--config", file}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) || stdout != "" {
			t.Errorf("%s: exit %d, %q, %q", name, code, stdout, stderr)
		}
	}
}

// TestLinksAreSeenAndDecidedBesideTheDaemon: the list asks the running daemon, and what is decided reaches it within a moment.
func TestLinksAreSeenAndDecidedBesideTheDaemon(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	d := r.serve(file)
	known := r.knowing(file, d)
	list := func() string { return r.must("links", "--config", known) } // list is what links does by itself
	text := list()
	matches(t, "links", text, `^LINK +LINE +ADDRESS +STATE +FOR +PENDING +RECEIVED +ECHO +LAST DOWN$`)
	matches(t, "links", text, `^visa-a +0 +127\.0\.0\.1:[0-9]+ +signed_on +[0-9]+s +0 +[0-9]+s ago +\S+ +-$`)
	if text := r.must("links", "list", "--config", known); strings.Contains(text, "held") || strings.Contains(text, "signed off") {
		t.Errorf("nobody decided anything, but listed\n%s", text)
	}
	if told := r.must("links", "hold", "visa-a", "--reason", "the scheme asked for it", "--config", file); !strings.Contains(told, "hold of visa-a is recorded") {
		t.Errorf("told %q", told)
	}
	r.eventually("the daemon holds the link", func() bool { return strings.Contains(list(), "visa-a is held: the scheme asked for it\n") })
	if reply := r.post(d.api(), "key-1", gatewaytest.Purchase("12.00", nil)); reply.status != 503 || reply.view.Code != "link_held" || reply.view.Sent != "no" {
		t.Errorf("held: %d %s", reply.status, reply.body)
	}
	r.must("links", "resume", "visa-a", "--reason", "over", "--config", file)
	r.eventually("the daemon took the hold away", func() bool { return !strings.Contains(list(), "is held") })
	if reply := r.post(d.api(), "key-1", gatewaytest.Purchase("12.00", nil)); reply.view.State != "approved" {
		t.Errorf("resumed: %d %s", reply.status, reply.body)
	}
	r.must("links", "sign-off", "visa-a", "--reason", "maintenance", "--config", file)
	r.eventually("the daemon signed off", func() bool {
		text := list()
		return strings.Contains(text, " signed_off ") && strings.Contains(text, "visa-a is signed off as planned: maintenance\n")
	})
	r.must("links", "sign-on", "visa-a", "--reason", "over", "--config", file)
	r.eventually("the daemon signed on", func() bool { return strings.Contains(list(), " signed_on ") })
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Fatalf("exit %d", code)
	}
	if code, stdout, stderr := command(t, "links", "list", "--config", known); code != exitFault || stdout != "" || !strings.Contains(stderr, "is it running?") || !strings.Contains(stderr, "admin.listen") {
		t.Errorf("without a daemon: exit %d, %q, %q", code, stdout, stderr)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no such link": {[]string{"hold", "visa-b", "--reason", "why"}, exitFault, "the configuration has no such link"},
		"no reason":    {[]string{"hold", "visa-a"}, exitUsage, "--reason"},
		"empty reason": {[]string{"resume", "visa-a", "--reason", " "}, exitFault, "a reason is required"},
		"card number":  {[]string{"sign-off", "visa-a", "--reason", "card 4111111111111111"}, exitFault, "card number"},
	} {
		code, _, stderr := command(t, append([]string{"links"}, append(c.args, "--config", file)...)...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "4111") {
			t.Errorf("%s: exit %d, %q", name, code, stderr)
		}
	}
}

// TestRefusedCaptureIsListedAndResumed: an exception calls a person, who finds the capture and lets it go on.
func TestRefusedCaptureIsListedAndResumed(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	if err := r.scheme.SetRules([]sim.Rule{{When: sim.Match{MTI: []string{"0220", "0221"}, Amount: refusedAmount, First: 1, Per: sim.PerOriginal},
		Then: sim.Action{Answer: sim.AnswerDecline, ResponseCode: "30"}}}); err != nil {
		t.Fatal(err)
	}
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	if listed := r.must("exceptions", "list", "--config", file); !strings.HasPrefix(listed, "KIND ") || !strings.HasSuffix(listed, "\nnone\n") {
		t.Errorf("nothing needs a person, but listed\n%s", listed)
	}
	d := r.serve(file)
	authorization := r.post(d.api(), "key-1", gatewaytest.Purchase(refusedAmount, nil)).view.ID
	status, body := r.postTo(d.api()+"/v1/authorizations/"+authorization+"/captures", "key-2", map[string]any{"client_reference": "cap-1"})
	var capture struct{ ID string }
	if err := json.Unmarshal(body, &capture); err != nil || status != 201 {
		t.Fatalf("capture: %d %s, %v", status, body, err)
	}
	r.eventually("the capture is suspended", func() bool {
		return strings.Contains(r.must("duties", "list", "--state", "suspended", "--config", file), capture.ID)
	})
	matches(t, "duties", r.must("duties", "list", "--config", file), `^`+capture.ID+` +capture +visa-a +`+authorization+` +suspended +[0-9]+s +1 +- +30$`)
	row := `^capture_refused +visa-a +bank-a +[0-9]+s +` + capture.ID + ` +the scheme refused it`
	for _, args := range [][]string{{}, {"--kind", "capture_refused"}, {"--link", "visa-a", "--tenant", "bank-a"}, {"--age", ">1us"}, {"--age", "1us"}} {
		matches(t, "exceptions "+strings.Join(args, " "), r.must(append([]string{"exceptions", "list", "--config", file}, args...)...), row)
	}
	for _, args := range [][]string{{"--kind", "reversal_refused"}, {"--link", "visa-b"}, {"--tenant", "bank-b"}, {"--age", ">1h"}} {
		if listed := r.must(append([]string{"exceptions", "list", "--config", file}, args...)...); strings.Contains(listed, capture.ID) || !strings.HasSuffix(listed, "\nnone\n") {
			t.Errorf("%v lists\n%s", args, listed)
		}
	}
	if code, _, stderr := command(t, "exceptions", "list", "--age", "soon", "--config", file); code != exitUsage || !strings.Contains(stderr, "an age is a duration") {
		t.Errorf("an age that is none: exit %d, %q", code, stderr)
	}
	matches(t, "track", r.must("track", capture.ID, "--config", file), "^next: capture 1 is suspended: a person decides, see `schemegate duties resume` \\(operator\\)$")
	r.must("duties", "resume", capture.ID, "--reason", "the scheme repaired its table", "--config", file)
	r.eventually("the capture is acknowledged", func() bool {
		_, body := r.fetch(d.api() + "/v1/authorizations/" + authorization + "/captures/" + capture.ID)
		return strings.Contains(body, `"state":"acknowledged"`)
	})
	if listed := r.must("exceptions", "list", "--config", file); !strings.HasSuffix(listed, "\nnone\n") {
		t.Errorf("the exception stays open\n%s", listed)
	}
	if listed := r.must("duties", "list", "--config", file); strings.Count(listed, "\n") != 1 {
		t.Errorf("still owed\n%s", listed)
	}
}
