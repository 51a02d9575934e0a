package sim

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// TestExampleFile holds the commented example against the defaults that it says it shows.
func TestExampleFile(t *testing.T) {
	t.Parallel()
	cfg, err := LoadCard(filepath.Join("..", "..", "configs", "sim-card.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Rules) == 0 {
		t.Error("the example shows no rule")
	}
	want := DefaultCardConfig()
	want.Listen, want.Rules = "127.0.0.1:8583", cfg.Rules
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("(-defaults +example)\n%s", diff)
	}
}

func TestRulesOfAFile(t *testing.T) {
	t.Parallel()
	cfg, err := LoadCard(filepath.Join("testdata", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	card, _ := start(t, func(c *CardConfig) { *c = cfg })
	p := dial(t, card)
	if got := p.ask("0800", fields{70: "001", 11: "000001"}); got[39] != "91" {
		t.Errorf("first sign-on: %v", got)
	}
	if got := p.ask("0800", fields{70: "001", 11: "000002"}); got[39] != "00" {
		t.Errorf("second sign-on: %v", got)
	}
	range5 := purchase(10, 2500)
	range5[2] = otherPAN
	if got := p.ask("0100", range5); got[39] != "62" {
		t.Errorf("range: %v", got)
	}
	if got := p.ask("0100", purchase(11, 100_000)); got[39] != "10" || got[4] != "000000030000" {
		t.Errorf("large amount: %v", got)
	}
	if got := p.ask("0100", purchase(12, 1005)); got[39] != "00" {
		t.Errorf("magic amounts are off: %v", got)
	}
	f := purchase(13, 777)
	if got := p.ask("0200", f); got[0] != "0210" || got[39] != "08" || got[37] != "000000000042" {
		t.Errorf("set and code: %v", got)
	}
	for i := range 3 {
		if got := p.read(); got[11] != "000013" {
			t.Errorf("copy %d: %v", i+2, got)
		}
	}
}

func TestRulesOfAFileAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, `listen: ""
late_after: 3
rules:
- name: wrong
  when:
    mti: [100]
    amount: "10"
    pan_prefix: 4111x
    per: card
    frist: 1
  then:
    answer: decline
    deliver: maybe
- then: {answer: partial, percent: 100, copies: 101}
- then: {answer: approve, response_code: "05"}
- then: {set: {39: "12345", 4: "ten"}}
`)
	_, err := LoadCard(file)
	if err == nil {
		t.Fatal("no faults")
	}
	want := strings.ReplaceAll(`FILE:1: listen: needs an address, like 127.0.0.1:8583
FILE:2: late_after: "3": a duration needs a unit, like 10s
FILE:6: rules.0.when.mti.0: "100": is a message type of 4 digits, like 0100
FILE:7: rules.0.when.amount: "10": an amount has two decimals, like 10.05, and at most 12 digits
FILE:8: rules.0.when.pan_prefix: is the first digits of a card number
FILE:9: rules.0.when.per: "card": is rule or original
FILE:10: rules.0.when.frist: unknown key; did you mean first?
FILE:11: rules.0.then.response_code: is needed for a decline
FILE:13: rules.0.then.deliver: "maybe": is once, silent, twice, split, glued, hang_up_before, hang_up_after, trickle, reversed or other_connection
FILE:14: rules.1.then.percent: "100": is 1 to 99, or an amount is given
FILE:14: rules.1.then.copies: "101": is 0 to 100
FILE:15: rules.2.then.response_code: "05": of an approval is 00, 08, 11 or 16; for others the answer is decline`, "FILE", file)
	got := strings.Split(err.Error(), "\n")
	// The last two are the codec's words.
	if len(got) < 2 || !strings.Contains(got[len(got)-2], ":16: rules.3.then.set.39: ") || !strings.Contains(got[len(got)-1], ":16: rules.3.then.set.4: ") {
		t.Fatalf("elements to set are not checked:\n%s", err)
	}
	got = got[:len(got)-2]
	wantLines := strings.Split(want, "\n")
	if diff := cmp.Diff(wantLines, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := LoadCard(file + ".none"); err == nil {
		t.Error("a missing file is read")
	}
}

func TestDeliveriesAndMixesAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, `already_reversed_code: "!"
partial_reversal: half
balance: "1"
cutover_every: -1
rules:
- then: {damage: much, also: dance, batch: 1001, interim: -1, times: 1001}
- then: {deliver: silent}
  mix:
  - {weight: 0, then: {answer: decline}}
- mix:
  - {weight: 1, then: {set: {4: ten}}}
- then: {answer: approve, response_code: "002"}
`)
	_, err := LoadCard(file)
	if err == nil {
		t.Fatal("no faults")
	}
	for _, want := range []string{
		`:1: already_reversed_code: `, `:2: partial_reversal: "half": is standard or de4`, `:3: balance: `, `:4: cutover_every: "-1": is not negative`,
		`:6: rules.0.then.damage: "much": is cut, bitmap, mti or flip`, `:6: rules.0.then.also: `, `:6: rules.0.then.batch: "1001": is 0 to 1000`,
		`:6: rules.0.then.interim: "-1": is 0 to 100`, `:6: rules.0.then.times: "1001": is 0 to 1000`, `rules.1.mix: stands in the place of then`,
		`:9: rules.1.mix.0.weight: "0": is 1 to 1000000`, `:9: rules.1.mix.0.then.response_code: is needed for a decline`,
		`:11: rules.2.mix.0.then.set.4: `, `:12: rules.3.then.response_code: "002": of an approval is`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no fault %s", want)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 14 {
		t.Errorf("%d faults:\n%v", n, err)
	}
}

func TestRuleCounts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		when Match
		want string // which of the messages 1 to 9 match
	}{
		"first":            {Match{First: 2}, "12"},
		"after":            {Match{After: 6}, "789"},
		"every":            {Match{Every: 3}, "369"},
		"first after":      {Match{After: 2, First: 3}, "345"},
		"every after":      {Match{After: 1, Every: 4}, "59"},
		"all":              {Match{}, "123456789"},
		"first three even": {Match{First: 4, Every: 2}, "24"},
	} {
		set, err := compileRules([]Rule{{When: tt.when}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for n := 1; n <= 9; n++ {
			if set.find(seen{}) != nil {
				got += string(rune('0' + n))
			}
		}
		if got != tt.want {
			t.Errorf("%s: messages %s, want %s", name, got, tt.want)
		}
	}
}

func TestRuleCountsPerOriginalAreBounded(t *testing.T) {
	t.Parallel()
	set, err := compileRules([]Rule{{When: Match{First: 1, Per: PerOriginal}}})
	if err != nil {
		t.Fatal(err)
	}
	one, two := seen{original: HoldKey{STAN: "1"}}, seen{original: HoldKey{STAN: "2"}}
	if set.find(one) == nil || set.find(two) == nil || set.find(one) != nil || set.find(two) != nil {
		t.Error("originals are not counted apart")
	}
	for i := range maxCounted + 10 {
		set.find(seen{original: HoldKey{MTI: iso8583.MTI(i), STAN: "x"}, amount: int64(i)})
	}
	if n := len(set[0].counts); n > maxCounted {
		t.Errorf("%d counts", n)
	}
}

func TestFirstMatchingRuleWins(t *testing.T) {
	t.Parallel()
	set, err := compileRules([]Rule{
		{Name: "range", When: Match{PANFrom: "400", PANTo: "410"}},
		{Name: "prefix", When: Match{PANPrefix: "4111"}},
		{Name: "amounts", When: Match{AmountFrom: "1.00", AmountTo: "2.00", MTI: []string{"0100"}}},
		{Name: "at least", When: Match{AmountFrom: "5.00"}},
		{Name: "network", When: Match{NetworkCode: "301"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for want, messages := range map[string][]seen{
		"range":    {{pan: "4000"}, {pan: "410999"}},
		"prefix":   {{pan: visaPAN, amount: 150, mti: 0x0100}},
		"amounts":  {{amount: 100, mti: 0x0100}, {amount: 200, mti: 0x0100}},
		"at least": {{amount: 500}, {pan: "41", amount: 999_999_999_999}},
		"network":  {{amount: -1, networkCode: "301"}, {pan: "39", amount: 201, mti: 0x0100, networkCode: "301"}},
		"":         {{amount: 150, mti: 0x0200}, {amount: -1, networkCode: "001"}, {pan: "4110"[:2]}},
	} {
		for _, m := range messages {
			got := ""
			if r := set.find(m); r != nil {
				got = r.Name
			}
			if got != want {
				t.Errorf("%+v: rule %q, want %q", m, got, want)
			}
		}
	}
}

func TestSetRulesWhileRunning(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if err := card.SetRules([]Rule{{Name: "closed", Then: Action{Answer: AnswerDecline, ResponseCode: "91"}, When: Match{MTI: []string{"0100"}}}}); err != nil {
		t.Fatal(err)
	}
	if got := p.ask("0100", purchase(1, 2500)); got[39] != "91" {
		t.Errorf("answer: %v", got)
	}
	if !hasRecord(card, func(r Record) bool { return r.Rule == "closed" && r.MTI == "0100" }) {
		t.Error("the journal does not name the rule")
	}
	if err := card.SetRules([]Rule{{Then: Action{Deliver: "never"}}}); err == nil {
		t.Error("a wrong rule is accepted")
	}
	if err := card.SetRules(nil); err != nil {
		t.Fatal(err)
	}
	if got := p.ask("0100", purchase(2, 2500)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
}

func TestAnswersHeldBackAreBounded(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.LateAfter, c.MaxWaitingAnswers = configs.Duration(time.Hour), 2 })
	p := signedOn(t, card)
	for stan := 1; stan <= 3; stan++ {
		p.send("0100", purchase(stan, lateMinor))
	}
	p.nothingCame()
	dropped := 0
	for _, r := range card.Journal() {
		if strings.HasPrefix(r.Note, "answer dropped") {
			dropped++
		}
	}
	if dropped != 1 {
		t.Errorf("%d answers dropped", dropped)
	}
}

func TestAdvicesAreAnsweredAndNotBooked(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0120", purchase(1, 2500)); got[0] != "0130" || got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	if err := card.SetRules([]Rule{{Then: Action{Answer: AnswerDecline, ResponseCode: "96"}}}); err != nil {
		t.Fatal(err)
	}
	if got := p.ask("0121", purchase(1, 2500)); got[0] != "0130" || got[39] != "96" {
		t.Errorf("answer: %v", got)
	}
	if len(card.Holds()) != 0 {
		t.Errorf("holds: %v", card.Holds())
	}
}

func TestAmountsOfRules(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"10.05": 1005, "0.00": 0, "0.01": 1, "9999999999.99": 999_999_999_999} {
		if got, err := parseAmount(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "10", "10.5", "10.005", "-1.00", "+1.00", "1e3.00", ".50", "10000000000.00", "1,0.00"} {
		if got, err := parseAmount(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}
