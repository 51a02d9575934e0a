package api

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

const linkPath = "/v1/links/" + gatewaytest.LinkName

// control is what a decision about a link is told.
type control struct {
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Off     bool   `json:"planned_sign_off"`
	Reason  string `json:"reason"`
	Version int    `json:"version"`
}

func (b *bench) link(t *testing.T) linkBody {
	t.Helper()
	return decode[page[linkBody]](t, b.get(t, "/v1/links").body).Items[0]
}

func TestLinkIsHeldAndResumedOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	first := b.postAs(t, b.ops, linkPath+"/hold", "key-1", fields{"reason": "the scheme asked for it"})
	holdsAgainst(t, "LinkControl", first.body)
	if c := decode[control](t, first.body); first.status != 200 || c.Name != gatewaytest.LinkName || !c.Held || c.Off || c.Reason != "the scheme asked for it" || c.Version != 1 {
		t.Fatalf("got %d %s", first.status, first.body)
	}
	if l := b.link(t); !l.Held || l.PlannedSignOff || l.Reason != "the scheme asked for it" {
		t.Fatalf("the link stands as %+v", l)
	}
	held := b.post(t, "auth-1", gatewaytest.Purchase("1.00", nil))
	p := wantProblem(t, held, 503, gateway.CodeLinkHeld)
	if p.Sent != gateway.SentNo || p.Retry != gateway.RetryAfter || held.header.Get("Retry-After") == "" {
		t.Errorf("held: %v %s", held.header, held.body)
	}
	documented(t, b, "post-authorization", p)
	again := b.postAs(t, b.ops, linkPath+"/hold", "key-1", fields{"reason": "the scheme asked for it"})
	if again.status != 200 || again.header.Get("Idempotent-Replayed") != "true" || !bytes.Equal(again.body, first.body) {
		t.Fatalf("repeat got %d %v %s", again.status, again.header, again.body)
	}
	for path, reason := range map[string]string{"/hold": "another reason", "/sign-off": "the scheme asked for it"} {
		documented(t, b, "link-hold", wantProblem(t, b.postAs(t, b.ops, linkPath+path, "key-1", fields{"reason": reason}), 422, gateway.CodeKeyReuse))
	}
	// What stands already changes nothing.
	if c := decode[control](t, b.postAs(t, b.ops, linkPath+"/hold", "key-2", fields{"reason": "once more"}).body); c.Version != 1 || c.Reason != "the scheme asked for it" {
		t.Errorf("held twice: %+v", c)
	}
	if c := decode[control](t, b.postAs(t, b.ops, linkPath+"/resume", "key-3", fields{"reason": "over"}).body); c.Held || c.Version != 2 {
		t.Fatalf("resumed: %+v", c)
	}
	if v := b.authorize(t, "1.00", nil); v.State != "approved" {
		t.Errorf("after the hold: %+v", v)
	}
}

func TestLinkIsSignedOffAndOnOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	if a := b.postAs(t, b.ops, linkPath+"/sign-off", "key-1", fields{"reason": "maintenance"}); a.status != 200 || !decode[control](t, a.body).Off {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	b.Eventually(t, "signed off", func() bool {
		l := b.link(t)
		return l.State == "signed_off" && l.PlannedSignOff && l.SignedOffBy == "planned"
	})
	wantProblem(t, b.post(t, "auth-1", gatewaytest.Purchase("1.00", nil)), 503, gateway.CodeLinkUnavailable)
	if a := b.postAs(t, b.ops, linkPath+"/sign-on", "key-2", fields{"reason": "over"}); a.status != 200 || decode[control](t, a.body).Off {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	b.AwaitSignedOn(t)
	if v := b.authorize(t, "1.00", nil); v.State != "approved" {
		t.Errorf("signed on: %+v", v)
	}
}

func TestDecisionsAboutLinksAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	why := fields{"reason": "why"}
	for action, operation := range map[string]string{"hold": "link-hold", "resume": "link-resume", "sign-off": "link-sign-off", "sign-on": "link-sign-on"} {
		for _, key := range []string{b.key, b.other} {
			p := wantProblem(t, b.postAs(t, key, linkPath+"/"+action, uuid.NewString(), why), 403, gateway.CodeForbidden)
			if p.Sent != gateway.SentNo || p.Retry != gateway.RetryNever {
				t.Errorf("%s without the right to it: %+v", action, p)
			}
			documented(t, b, operation, p)
		}
		documented(t, b, operation, wantProblem(t, b.postAs(t, "sgk_wrong", linkPath+"/"+action, "key-1", why), 401, gateway.CodeUnauthenticated))
		documented(t, b, operation, wantProblem(t, b.postAs(t, b.ops, "/v1/links/no-such/"+action, uuid.NewString(), why), 404, gateway.CodeNotFound))
		for name, body := range map[string]fields{"reason": {}, "reason ": {"reason": "card 4111111111111111"}, "reason  ": {"reason": "two\nlines"}, "for": {"reason": "why", "for": "ever"}} {
			p := wantProblem(t, b.postAs(t, b.ops, linkPath+"/"+action, uuid.NewString(), body), 422, gateway.CodeValidationFailed)
			if len(p.Faults) != 1 || p.Faults[0].Field != strings.TrimSpace(name) || strings.Contains(p.Faults[0].Rule, "4111") {
				t.Errorf("%s: %+v", action, p.Faults)
			}
			documented(t, b, operation, p)
		}
		header := http.Header{"Authorization": {"Bearer " + b.ops}, "Content-Type": {"application/json"}}
		documented(t, b, operation, wantProblem(t, b.do(t, http.MethodPost, linkPath+"/"+action, header, []byte(`{"reason":"why"}`)), 400, gateway.CodeKeyMissing))
	}
	wantProblem(t, b.postAs(t, b.ops, linkPath+"/explode", "key-1", why), 404, gateway.CodeNotFound)
	wantProblem(t, b.postAs(t, b.ops, linkPath, "key-1", why), 404, gateway.CodeNotFound)
	wantProblem(t, b.get(t, linkPath+"/hold"), 405, gateway.CodeMethodNotAllowed)
	if n := b.Count(t, `SELECT count(*) FROM link_control WHERE version > 0`) + b.Count(t, `SELECT count(*) FROM idempotency_claim`); n != 0 {
		t.Errorf("%d traces of what was refused", n)
	}
}
