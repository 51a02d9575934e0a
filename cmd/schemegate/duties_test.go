package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

// refusedAmount is never answered, and its first reversal is refused with a format error.
const refusedAmount = "73.30"

// TestRefusedReversalIsResumedBesideTheDaemon: a person sees what is suspended and lets it go on, and the running daemon ends it.
func TestRefusedReversalIsResumedBesideTheDaemon(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	if err := r.scheme.SetRules([]sim.Rule{
		{When: sim.Match{MTI: []string{"0100"}, Amount: refusedAmount}, Then: sim.Action{Deliver: sim.DeliverSilent}},
		{When: sim.Match{MTI: []string{"0420", "0421"}, Amount: refusedAmount, First: 1, Per: sim.PerOriginal}, Then: sim.Action{Answer: sim.AnswerDecline, ResponseCode: "30"}},
	}); err != nil {
		t.Fatal(err)
	}
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	if listed := r.must("reversals", "list", "--config", file); strings.Count(listed, "\n") != 1 || !strings.HasPrefix(listed, "ID ") {
		t.Fatalf("nothing is owed, but listed\n%s", listed)
	}
	d := r.serve(file)
	authorization := r.post(d.api(), "key-refused", gatewaytest.Purchase(refusedAmount, nil)).view.ID
	var id string
	state := func() (s string) {
		if err := db.Pool.QueryRow(t.Context(), `SELECT id, state FROM duty WHERE authorization_id = $1`, authorization).Scan(&id, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	r.eventually("the reversal is suspended", func() bool { return state() == "suspended" })

	row := regexp.MustCompile(`(?m)^` + id + ` +reversal +` + gatewaytest.LinkName + ` +` + authorization + ` +suspended +[0-9]+s +1 +- +30$`)
	if listed := r.must("reversals", "list", "--config", file, "--state", "suspended"); !row.MatchString(listed) {
		t.Errorf("listed\n%s", listed)
	}
	if listed := r.must("reversals", "list", "--config", file, "--state", "owed"); strings.Contains(listed, id) {
		t.Errorf("listed as owed\n%s", listed)
	}
	if told := r.must("reversals", "resume", id, "--reason", "the scheme repaired its field table", "--config", file); !strings.Contains(told, id) {
		t.Errorf("told %q", told)
	}
	r.eventually("the reversal is acknowledged", func() bool { return state() == "acknowledged" })
	if status, body := r.fetch(d.api() + "/v1/authorizations/" + authorization); status != 200 || !strings.Contains(body, `"state":"reversed"`) {
		t.Errorf("the authorisation is %d %s", status, body)
	}
	var history string
	if err := db.Pool.QueryRow(t.Context(), `SELECT string_agg(to_state || coalesce(' (' || reason || ')', ''), ', ' ORDER BY state_version) FROM state_history WHERE subject_id = $1`, id).Scan(&history); err != nil {
		t.Fatal(err)
	}
	if want := "owed (timeout), suspended (refused), owed (the scheme repaired its field table), acknowledged (acknowledged)"; history != want {
		t.Errorf("history %q, want %q", history, want)
	}
	var open int
	if err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM exception WHERE closed_at IS NULL`).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d open exceptions, %v", open, err)
	}
	if code, _, stderr := command(t, "reversals", "resume", id, "--reason", "once more", "--config", file); code != exitFault || !strings.Contains(stderr, "is acknowledged: only a suspended one can be resumed") {
		t.Errorf("resumed twice: exit %d, %q", code, stderr)
	}
	checkHistory(t, db.Pool)
}

func TestResumeOfAReversalIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	id := uuid.NewString()
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown":       {[]string{id, "--reason", "why", "--config", file}, exitFault, "there is no such reversal or capture"},
		"empty reason":  {[]string{id, "--reason", " ", "--config", file}, exitFault, "a reason is required"},
		"no reason":     {[]string{id, "--config", file}, exitUsage, "--reason"},
		"not an id":     {[]string{"17", "--reason", "why", "--config", file}, exitUsage, "invalid UUID"},
		"no config":     {[]string{id, "--reason", "why"}, exitUsage, "--config"},
		"card number":   {[]string{id, "--reason", "card 4111111111111111", "--config", file}, exitFault, "card number"},
		"a state alone": {[]string{"--state", "owed"}, exitUsage, "unknown flag"},
	} {
		code, _, stderr := command(t, append([]string{"reversals", "resume"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "4111") {
			t.Errorf("%s: exit %d, %q", name, code, stderr)
		}
	}
	if code, _, stderr := command(t, "reversals", "list", "--state", "acknowledged", "--config", file); code != exitUsage || !strings.Contains(stderr, "--state") {
		t.Errorf("an unknown state: exit %d, %q", code, stderr)
	}
}
