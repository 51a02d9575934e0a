package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// tellCapture takes a part of an approval back and captures the rest, so that nothing of the hold is left on either side.
func (d *demo) tellCapture(ctx context.Context) error {
	approved, err := d.purchase(ctx, "key-hotel", "order-6", "30.00")
	if err != nil {
		return err
	}
	if err := want(approved, http.StatusCreated, "approved", "succeeded"); err != nil {
		return err
	}
	path := "/v1/authorizations/" + approved.view.ID
	part, err := d.stand.post(ctx, path+"/reversals", "key-part", map[string]any{"amount": "10.00"})
	if err != nil {
		return err
	}
	d.say("POST reversals, 10.00 of it  =>  %d, %s", part.status, part.view.State)
	if v := part.view; part.status != http.StatusCreated || v.Amount != "10.00" || v.State != "owed" {
		return fmt.Errorf("the partial reversal got %d %s", part.status, part.body)
	}
	if err := d.awaitAcknowledged(ctx, path+"/reversals/"+part.view.ID); err != nil {
		return err
	}
	d.say("-> 0420, <- 0430 acknowledged: 10.00 released, 20.00 stand")
	capture, err := d.stand.post(ctx, path+"/captures", "key-capture", map[string]any{"client_reference": "order-6-checkout"})
	if err != nil {
		return err
	}
	d.say("POST captures, what remains  =>  %d, %s", capture.status, capture.view.State)
	if v := capture.view; capture.status != http.StatusCreated || v.Amount != "20.00" || !v.Final || v.State != "owed" {
		return fmt.Errorf("the capture got %d %s", capture.status, capture.body)
	}
	if err := d.awaitAcknowledged(ctx, path+"/captures/"+capture.view.ID); err != nil {
		return err
	}
	now, err := d.stand.read(ctx, approved.view.ID)
	if err != nil {
		return err
	}
	for key, hold := range d.stand.scheme.Holds() {
		if key.STAN == approved.view.STAN && (hold.CapturedMinor != 2000 || hold.HeldMinor != 0) {
			return fmt.Errorf("the scheme has posted %d minor units and holds %d", hold.CapturedMinor, hold.HeldMinor)
		}
	}
	completions := d.received(iso8583.MTIFinancialAdvice)
	if now.State != "captured" || now.CapturedAmount != "20.00" || len(completions) != 1 {
		return fmt.Errorf("it is %s with %s captured, %d completions", now.State, now.CapturedAmount, len(completions))
	}
	d.say("-> 0220          STAN %s, 20.00 of authorization %s; it is never reversed on silence", completions[0].STAN, approved.view.STAN)
	d.say("<- 0230          acknowledged: %s, %s moved", now.State, now.CapturedAmount)
	return nil
}

// awaitAcknowledged waits until a capture or reversal has its answer.
func (d *demo) awaitAcknowledged(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	var done demoAuthorization
	return until(ctx, "the scheme's acknowledgement", func() bool {
		return d.stand.get(ctx, "http://"+d.stand.apiAddress+path, &done) == http.StatusOK && done.State == "acknowledged"
	})
}

// received lists the messages of a type that reached the scheme.
func (d *demo) received(mti iso8583.MTI) []sim.Record {
	var records []sim.Record
	for _, r := range d.stand.scheme.Journal() {
		if r.Direction == sim.In && r.MTI == mti.String() {
			records = append(records, r)
		}
	}
	return records
}

// tellGivenUp reverses an authorisation by the client's own reference before it came.
func (d *demo) tellGivenUp(ctx context.Context) error {
	sent, reversals := d.requests(""), len(d.received(iso8583.MTIReversalAdvice))
	given, err := d.stand.post(ctx, "/v1/reversals", "key-give-up", map[string]any{"client_reference": "order-7"})
	if err != nil {
		return err
	}
	d.say("POST reversals of order-7  =>  %d, %s: nothing was sent for it, and nothing will be", given.status, given.view.ClosedAs)
	if given.status != http.StatusCreated || given.view.ClosedAs != "withdrawn" {
		return fmt.Errorf("the reversal got %d %s", given.status, given.body)
	}
	late, err := d.purchase(ctx, "key-came-late", "order-7", "15.00")
	if err != nil {
		return err
	}
	if late.status != http.StatusConflict || late.view.Code != "reversed_before" || late.view.Retry != "never" {
		return fmt.Errorf("the request got %d %s", late.status, late.body)
	}
	if d.requests("") != sent || len(d.received(iso8583.MTIReversalAdvice)) != reversals {
		return errors.New("something of it reached the scheme")
	}
	d.say("refused although it is new: giving up works in any order")
	return nil
}

// tellTrack prints the timeline of the payment that got no answer, as the program's own command gives it.
func (d *demo) tellTrack(ctx context.Context) error {
	d.say("schemegate track order-3")
	output, err := exec.CommandContext(ctx, d.stand.program, "track", "order-3", "--json", "--config", d.stand.configFile).Output()
	if err != nil {
		return fmt.Errorf("track: %w", err)
	}
	var found []gateway.Timeline
	if err := json.Unmarshal(output, &found); err != nil {
		return fmt.Errorf("read timeline: %w", err)
	}
	if len(found) != 1 || found[0].FoundBy != "client_reference" {
		return fmt.Errorf("%d timelines", len(found))
	}
	seen := map[string]bool{}
	for _, s := range found[0].Steps {
		text := s.Text
		if s.Subject != "authorization" {
			text += " [" + s.Subject + "]"
		}
		seen[s.What+" "+text] = true
		d.say("%s  %-8s  %s", s.At.Format("15:04:05.000"), s.What, text)
	}
	for _, step := range []string{"posted hold 10.91 EUR", "sent -> 0100 committed for sending", "told answer stored for the caller: 201, timed_out",
		"sent -> 0420 committed for sending [reversal]", "received <- 0430 response [reversal]", "posted release 10.91 EUR"} {
		if !seen[step] {
			return fmt.Errorf("the timeline does not show: %s", step)
		}
	}
	d.say("next: %s", found[0].Next.Text)
	if found[0].Next.Owner != "nobody" {
		return fmt.Errorf("the next step is %s's", found[0].Next.Owner)
	}
	return nil
}
