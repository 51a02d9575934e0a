package api

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

// tracks reads the timelines that a reference names, each held against the document.
func (b *bench) tracks(t *testing.T, bearer, reference string) []gateway.Timeline {
	t.Helper()
	a := b.getAs(t, bearer, "/v1/track/"+url.PathEscape(reference))
	if a.status != 200 {
		t.Fatalf("track %s got %d %s", reference, a.status, a.body)
	}
	for _, item := range decode[page[json.RawMessage]](t, a.body).Items {
		holdsAgainst(t, "Timeline", item)
		var parts struct{ Steps []json.RawMessage }
		if err := json.Unmarshal(item, &parts); err != nil {
			t.Fatal(err)
		}
		for _, step := range parts.Steps {
			holdsAgainst(t, "TimelineStep", step)
		}
	}
	return decode[page[gateway.Timeline]](t, a.body).Items
}

func TestTrackOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	v := b.authorize(t, "12.34", fields{"client_reference": "shop/42//a"}) // a slash in it is the client's business
	capture := b.taken(t, pathOf(v)+"/captures", fields{"client_reference": "cap-1", "amount": "2.00", "final": false})
	b.awaitDuty(t, capture)
	for by, reference := range map[string]string{"id": v.ID.String(), "duty_id": capture.ID.String(), "client_reference": "shop/42//a", "capture_reference": "cap-1",
		"rrn": v.RRN, "stan": v.STAN} {
		found := b.tracks(t, b.key, reference)
		if len(found) != 1 || found[0].FoundBy != by || gatewaytest.Decode(t, found[0].Authorization).ID != v.ID || len(found[0].Steps) == 0 || found[0].Next.Owner != "client" {
			t.Errorf("by %s: %+v", by, found)
		}
		if theirs := b.tracks(t, b.other, reference); len(theirs) != 0 {
			t.Errorf("by %s the other tenant sees %+v", by, theirs)
		}
	}
	if found := b.tracks(t, b.key, strings.ToUpper(v.ID.String())); len(found) != 1 || found[0].FoundBy != "id" {
		t.Errorf("an id in capitals: %+v", found)
	}
	for _, unknown := range []string{"nothing", uuid.NewString(), "999999", "999999999999", v.STAN + "@2020-01-01"} {
		if found := b.tracks(t, b.key, unknown); found == nil || len(found) != 0 {
			t.Errorf("%s: %+v, want an empty list", unknown, found)
		}
	}
	for _, path := range []string{"/v1/track/" + strings.Repeat("x", 65), "/v1/track/a%20b", "/v1/track/a%00b", "/v1/track/" + url.PathEscape("é"), "/v1/track/a?x=1"} {
		p := wantProblem(t, b.get(t, path), 400, gateway.CodeMalformedParameter)
		documented(t, b, "track", p)
	}
	wantProblem(t, b.getAs(t, "sgk_wrong", "/v1/track/x"), 401, gateway.CodeUnauthenticated)
	wantProblem(t, b.get(t, "/v1/track/"), 404, gateway.CodeNotFound)
}

func TestTrackOfAReversalThatCameFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	stone := b.taken(t, "/v1/reversals", fields{"client_reference": "ref-early"})
	wantProblem(t, b.post(t, "key-1", gatewaytest.Purchase("12.34", fields{"client_reference": "ref-early"})), 409, gateway.CodeReversedBefore)
	b.Eventually(t, "the refusal is in the journal", func() bool { return b.Count(t, `SELECT count(*) FROM duplicate WHERE reason = 'reversed_before'`) == 1 })
	for by, reference := range map[string]string{"client_reference": "ref-early", "duty_id": stone.ID.String()} {
		found := b.tracks(t, b.key, reference)
		if len(found) != 1 || found[0].FoundBy != by || found[0].Authorization != nil || found[0].Next.Owner != "nobody" || len(found[0].Steps) != 3 {
			t.Fatalf("by %s: %+v", by, found)
		}
		for i, want := range []string{"state", "told", "duplicate"} {
			if s := found[0].Steps[i]; s.What != want || s.Subject != "reversal" {
				t.Errorf("step %d: %+v, want %s", i, s, want)
			}
		}
		if theirs := b.tracks(t, b.other, reference); len(theirs) != 0 {
			t.Errorf("the other tenant sees %+v", theirs)
		}
	}
}

func TestDuplicatesOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	body := gatewaytest.Purchase("12.34", fields{"client_reference": "ref-1"})
	v := gatewaytest.Decode(t, b.post(t, "key-1", body).body)
	b.post(t, "key-1", body)
	b.post(t, "key-1", gatewaytest.Purchase("12.35", fields{"client_reference": "ref-1"}))
	b.post(t, "key-2", body)
	b.Eventually(t, "three repeats are in the journal", func() bool { return b.Count(t, `SELECT count(*) FROM duplicate`) == 3 })
	var got []string
	path, pages := "/v1/duplicates?limit=2", 0
	for more := true; more; pages++ {
		a := b.get(t, path)
		list := decode[page[gateway.Duplicate]](t, a.body)
		for i, d := range list.Items {
			holdsAgainst(t, "Duplicate", decode[page[json.RawMessage]](t, a.body).Items[i])
			if d.Source != "client" || d.OriginalID == nil || *d.OriginalID != v.ID || !strings.HasPrefix(d.Key, "authorizations/key-") {
				t.Errorf("row %+v", d)
			}
			got = append(got, d.Reason)
		}
		if more = list.NextCursor != nil; more {
			path = "/v1/duplicates?limit=2&cursor=" + *list.NextCursor
		}
	}
	if pages != 2 || strings.Join(got, " ") != "duplicate_reference key_reuse replayed" {
		t.Errorf("%d pages with %v", pages, got)
	}
	if list := decode[page[gateway.Duplicate]](t, b.getAs(t, b.other, "/v1/duplicates").body); len(list.Items) != 0 || list.Items == nil {
		t.Errorf("the other tenant sees %+v", list)
	}
	for _, query := range []string{"?limit=0", "?cursor=x", "?reason=replayed"} {
		documented(t, b, "list-duplicates", wantProblem(t, b.get(t, "/v1/duplicates"+query), 400, gateway.CodeMalformedParameter))
	}
}

// TestS43_RRNIsFoundInAnyCaseAndWithSpaces: people paste references.
func TestS43_RRNIsFoundInAnyCaseAndWithSpaces(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	v := b.Stand.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.00", nil))
	if _, err := b.Stand.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET rrn = 'AB3504000C01' WHERE id = $1`, v.ID); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/authorizations?rrn=ab3504000c01", "/v1/authorizations?rrn=%20AB3504000c01%20", "/v1/track/ab3504000c01", "/v1/track/%20AB3504000C01%20"} {
		a := b.get(t, path)
		if a.status != 200 || strings.Count(string(a.body), v.ID.String()) == 0 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
