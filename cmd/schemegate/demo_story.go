package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// demoWait bounds each wait for something to happen.
const demoWait = 20 * time.Second

func (d *demo) tellStart(ctx context.Context) error {
	s := d.stand
	if err := s.startScheme(); err != nil {
		return err
	}
	if err := s.configure(); err != nil {
		return err
	}
	began := time.Now()
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	d.say("scheme on %s, API on http://%s", s.scheme.Addr(), s.apiAddress)
	d.say("made a PostgreSQL cluster, migrated it, signed on (0800/0810): %.1f s", time.Since(began).Seconds())
	return nil
}

func (d *demo) tellApproval(ctx context.Context) error {
	answer, err := d.purchase(ctx, "key-approval", "order-1", "12.34")
	if err != nil {
		return err
	}
	if err := want(answer, http.StatusCreated, "approved", "succeeded"); err != nil {
		return err
	}
	d.say("approval code %s, STAN %s, RRN %s, card %s", answer.view.ApprovalCode, answer.view.STAN, answer.view.RRN, answer.view.PAN)
	return nil
}

func (d *demo) tellDecline(ctx context.Context) error {
	answer, err := d.purchase(ctx, "key-decline", "order-2", "10.51")
	if err != nil {
		return err
	}
	if err := want(answer, http.StatusCreated, "declined", "failed"); err != nil {
		return err
	}
	if answer.view.ResponseCode != "51" || answer.view.Retry != "new_key" {
		return fmt.Errorf("response code %q and retry %q", answer.view.ResponseCode, answer.view.Retry)
	}
	d.say("insufficient funds; a new attempt would need a new key (retry: %s)", answer.view.Retry)
	return nil
}

func (d *demo) tellRepeat(ctx context.Context) error {
	sent := d.requests("")
	first, err := d.purchase(ctx, "key-approval", "order-1", "12.34")
	if err != nil {
		return err
	}
	second, err := d.purchase(ctx, "key-approval", "order-1", "12.34")
	if err != nil {
		return err
	}
	switch {
	case !first.replayed || !second.replayed:
		return errors.New("the answer was not a replay")
	case !bytes.Equal(first.body, second.body) || first.view.ApprovalCode == "":
		return errors.New("the answers differ")
	case d.requests("") != sent:
		return errors.New("a repeat reached the scheme")
	}
	d.say("byte for byte the first answer; nothing was sent to the scheme")
	return nil
}

func (d *demo) tellKeyReuse(ctx context.Context) error {
	sent := d.requests("")
	answer, err := d.purchase(ctx, "key-approval", "order-1", "99.00")
	if err != nil {
		return err
	}
	if answer.status != http.StatusUnprocessableEntity || answer.view.Code != "idempotency_key_reuse" || d.requests("") != sent {
		return fmt.Errorf("status %d, code %q", answer.status, answer.view.Code)
	}
	d.say("refused with %s; no effect, and not the old answer either", answer.view.Code)
	return nil
}

func (d *demo) tellSilence(ctx context.Context) error {
	answer, err := d.purchase(ctx, "key-silence", "order-3", "10.91")
	if err != nil {
		return err
	}
	if err := want(answer, http.StatusCreated, "timed_out", "unknown"); err != nil {
		return err
	}
	if answer.view.Reversal == nil || answer.view.Retry != "never" {
		return errors.New("no reversal is owed")
	}
	d.say("a timeout is missing information: retry %s, reversal %s", answer.view.Retry, answer.view.Reversal.State)
	return d.tellReversed(ctx, answer.view)
}

func (d *demo) tellLateApproval(ctx context.Context) error {
	answer, err := d.purchase(ctx, "key-late", "order-4", "10.92")
	if err != nil {
		return err
	}
	if err := want(answer, http.StatusCreated, "timed_out", "unknown"); err != nil {
		return err
	}
	if err := d.tellReversed(ctx, answer.view); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	late := `schemegate_late_responses_total{link="` + demoLink + `"} 1`
	if err := until(wait, "the late approval is recorded", func() bool {
		metrics, _ := d.stand.fetch(wait, "http://"+d.stand.adminAddress+"/metrics")
		return strings.Contains(string(metrics), late)
	}); err != nil {
		return err
	}
	now, err := d.stand.read(ctx, answer.view.ID)
	if err != nil {
		return err
	}
	if now.State != "reversed" {
		return fmt.Errorf("the late approval moved it to %s", now.State)
	}
	d.say("<- 0110 (late)   the approval is recorded and changes nothing: still %s", now.State)
	return nil
}

func (d *demo) tellCrash(ctx context.Context) error {
	s := d.stand
	sent := d.requests("10.90")
	failed := make(chan error, 1)
	go func() {
		_, err := s.purchase(ctx, "key-crash", "order-5", "10.90")
		failed <- err
	}()
	wait, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	if err := until(wait, "the request reaches the scheme", func() bool { return d.requests("10.90") == sent+1 }); err != nil {
		return err
	}
	if err := s.kill(); err != nil {
		return err
	}
	if err := <-failed; err == nil {
		return errors.New("the caller got an answer from a dead daemon")
	}
	d.say("-> 0100          the request is on the wire")
	d.say("kill -9          the caller's connection breaks; it knows nothing")
	began := time.Now()
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	d.say("restart          ready again after %.1f s", time.Since(began).Seconds())
	answer, err := d.purchase(ctx, "key-crash", "order-5", "10.90")
	if err != nil {
		return err
	}
	if err := want(answer, http.StatusCreated, "timed_out", "unknown"); err != nil {
		return err
	}
	if !answer.replayed || d.requests("10.90") != sent+1 {
		return errors.New("the request went to the scheme a second time")
	}
	d.say("the same key finds what became of it; nothing was sent a second time")
	return d.tellReversed(ctx, answer.view)
}

func (d *demo) tellBooks(ctx context.Context) error {
	s := d.stand
	verify := exec.CommandContext(ctx, s.program, "ledger", "verify", "--config", s.configFile)
	output, err := verify.CombinedOutput()
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		d.say("%s", line)
	}
	if err != nil {
		return fmt.Errorf("ledger verify: %w", err)
	}
	held, err := d.held(ctx)
	if err != nil {
		return err
	}
	var scheme int64
	for _, hold := range s.scheme.Holds() {
		scheme += hold.HeldMinor
	}
	if held != scheme {
		return fmt.Errorf("the ledger holds %d minor units, the scheme %d", held, scheme)
	}
	d.say("held by the ledger and held by the scheme agree: %d.%02d EUR, the one approval that stands", held/100, held%100)
	if held != 1234 {
		return fmt.Errorf("held %d minor units, want the one approval of 12.34", held)
	}
	return nil
}

// held sums what the tenant's customer accounts have on hold, in minor units.
func (d *demo) held(ctx context.Context) (int64, error) {
	base := "http://" + d.stand.apiAddress + "/v1/ledger/accounts"
	var accounts struct {
		Items []struct {
			ID   int32  `json:"id"`
			Kind string `json:"kind"`
		} `json:"items"`
	}
	if status := d.stand.get(ctx, base, &accounts); status != http.StatusOK {
		return 0, fmt.Errorf("list accounts: status %d", status)
	}
	var held int64
	for _, account := range accounts.Items {
		if account.Kind != "customer" {
			continue
		}
		var balance struct {
			Held string `json:"held"`
		}
		if status := d.stand.get(ctx, base+"/"+strconv.Itoa(int(account.ID))+"/balance", &balance); status != http.StatusOK {
			return 0, fmt.Errorf("read balance: status %d", status)
		}
		minor, err := strconv.ParseInt(strings.ReplaceAll(balance.Held, ".", ""), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read balance: %w", err)
		}
		held += minor
	}
	return held, nil
}

// purchase tells of a purchase and its answer.
func (d *demo) purchase(ctx context.Context, key, reference, amount string) (demoAnswered, error) {
	answer, err := d.stand.purchase(ctx, key, reference, amount)
	if err != nil {
		return answer, err
	}
	v := answer.view
	outcome := v.Code
	if v.State != "" {
		outcome = fmt.Sprintf("%s, outcome %s, response code %s", v.State, v.Outcome, v.ResponseCode)
	}
	replayed := ""
	if answer.replayed {
		replayed = " (Idempotent-Replayed)"
	}
	d.say("POST %s EUR, key %s  =>  %d %s%s", amount, key, answer.status, outcome, replayed)
	return answer, nil
}

// tellReversed waits until the authorisation is reversed, on both sides.
func (d *demo) tellReversed(ctx context.Context, v demoAuthorization) error {
	wait, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	var now demoAuthorization
	if err := until(wait, "the reversal is acknowledged", func() bool {
		var err error
		now, err = d.stand.read(wait, v.ID)
		return err == nil && now.State == "reversed"
	}); err != nil {
		return err
	}
	for _, r := range d.stand.scheme.Journal() {
		if r.Direction != sim.In || r.STAN != v.STAN || r.OriginalDataElements == "" {
			continue
		}
		original, err := iso8583.ParseOriginalDataElements(r.OriginalDataElements)
		if err != nil || original.STAN != v.STAN || original.MTI != iso8583.MTIAuthorizationRequest {
			return errors.New("the reversal names another original")
		}
		d.say("-> %s          STAN %s, original %s/%s of %s", r.MTI, r.STAN, original.MTI, original.STAN, original.TransmissionDateTime)
	}
	for key, hold := range d.stand.scheme.Holds() {
		if key.STAN == v.STAN && (hold.HeldMinor != 0 || hold.Reversals == 0) {
			return fmt.Errorf("the scheme still holds %d minor units", hold.HeldMinor)
		}
	}
	d.say("<- 0430          acknowledged after %d attempt(s): %s, outcome %s, hold released", now.Reversal.Attempts, now.State, now.Outcome)
	return nil
}

// requests counts the 0100s that reached the scheme, of one amount or of all.
func (d *demo) requests(amount string) int {
	minor, _ := strconv.ParseInt(strings.ReplaceAll(amount, ".", ""), 10, 64)
	n := 0
	for _, r := range d.stand.scheme.Journal() {
		if r.Direction == sim.In && r.MTI == iso8583.MTIAuthorizationRequest.String() && (amount == "" || r.AmountMinor == minor) {
			n++
		}
	}
	return n
}

// want checks an answer's status, state and outcome.
func want(answer demoAnswered, status int, state, outcome string) error {
	if answer.status != status || answer.view.State != state || answer.view.Outcome != outcome {
		return fmt.Errorf("got %d %s, outcome %s, wanted %d %s, outcome %s", answer.status, answer.view.State, answer.view.Outcome, status, state, outcome)
	}
	return nil
}
