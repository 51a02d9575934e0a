package api

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/schemegate/schemegate/gateway"
)

// schemas are the shapes of the API, written down once for people and tools. They do not validate: the gateway does, and
// reports every fault at once. A test holds them against the structs.
func schemas() map[string]*huma.Schema {
	return map[string]*huma.Schema{
		"AuthorizationRequest": authorizationRequestSchema(),
		"Authorization":        authorizationSchema(),
		"Reversal":             reversalSchema(),
		"Problem":              problemSchema(),
		"Link":                 linkSchema(),
		"Exception":            exceptionSchema(),
		"Account":              accountSchema(),
		"Balance":              balanceSchema(),
		"Entry":                entrySchema(),
		"CaptureRequest":       captureRequestSchema(),
		"ReversalRequest":      reversalRequestSchema(),
		"Duty":                 dutySchema(),
		"DutyAnswer":           dutyAnswerSchema(),
		"AuthorizationSummary": summarySchema(),
		"CardBalance":          cardBalanceSchema(),
		"LinkRequest":          linkRequestSchema(),
		"LinkControl":          linkControlSchema(),
		"Duplicate":            duplicateSchema(),
		"Timeline":             timelineSchema(),
		"TimelineStep":         timelineStepSchema(),
		"NextStep":             nextStepSchema(),
	}
}

func word(values ...any) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Enum: values} }

func moment() *huma.Schema { return &huma.Schema{Type: huma.TypeString, Format: "date-time"} }

func orNull(s *huma.Schema) *huma.Schema {
	s.Nullable = true
	return s
}

func flag() *huma.Schema { return &huma.Schema{Type: huma.TypeBoolean} }

func id() *huma.Schema { return &huma.Schema{Type: huma.TypeString, Format: "uuid"} }

func text() *huma.Schema { return textSchema("") }

func sentSchema() *huma.Schema {
	return word(string(gateway.SentNo), string(gateway.SentYes), string(gateway.SentUnknown))
}

func retrySchema() *huma.Schema {
	return word(string(gateway.RetryNever), string(gateway.RetrySameKey), string(gateway.RetryNewKey), string(gateway.RetryAfter))
}

func authorizationRequestSchema() *huma.Schema {
	strict := func(s *huma.Schema) *huma.Schema {
		s.AdditionalProperties = false
		return s
	}
	card := strict(describe(objectSchema(map[string]*huma.Schema{
		"pan": textSchema("^[0-9]{12,19}$"), "expiry": textSchema("^[0-9]{4}$"), "sequence_number": textSchema("^[0-9]{3}$"),
		"track2": text(), "pin_block": textSchema("^[0-9A-Fa-f]{16}$"), "icc": text(),
	}, "pan"), `
		pan: The card number (DE 2). Stored sealed only.
		expiry: YYMM (DE 14).
		sequence_number: DE 23.
		track2: DE 35. To the wire and nowhere else.
		pin_block: DE 52, hexadecimal. To the wire and nowhere else.
		icc: DE 55 as hexadecimal or base64 BER-TLV. To the wire and nowhere else.`))
	merchant := strict(describe(objectSchema(map[string]*huma.Schema{
		"terminal_id": text(), "acceptor_id": text(), "name_location": text(), "mcc": textSchema("^[0-9]{4}$"),
	}, "terminal_id", "acceptor_id"), `
		terminal_id: DE 41, at most 8 characters.
		acceptor_id: DE 42, at most 15 characters.
		name_location: DE 43, at most 40 characters.
		mcc: Merchant category code (DE 18).`))
	pos := strict(describe(objectSchema(map[string]*huma.Schema{
		"entry_mode": textSchema("^([0-9]{3}|[0-9A-Za-z]{12})$"), "condition_code": textSchema("^[0-9]{2}$"),
	}, "entry_mode"), `
		entry_mode: DE 22; 12 characters for a link of the 1993 edition.
		condition_code: DE 25; required by a link of the 1987 edition.`))
	return strict(describe(objectSchema(map[string]*huma.Schema{
		"client_reference": textSchema(referenceForm.String()), "order_reference": textSchema(referenceForm.String()),
		"type":   word(string(gateway.Purchase), string(gateway.Preauthorization), string(gateway.Cash), string(gateway.Refund), string(gateway.BalanceInquiry)),
		"amount": textSchema(`^[0-9]{1,12}(\.[0-9]+)?$`), "currency": textSchema("^[A-Z]{3}$"),
		"card": card, "merchant": merchant, "pos": pos,
		"acquirer_id": textSchema("^[0-9]{1,11}$"), "partial_approval": flag(), "link": textSchema(linkForm.String()),
		"elements": {Type: huma.TypeObject, AdditionalProperties: text()},
	}, "client_reference", "type", "currency", "card", "merchant", "pos"), `
		client_reference: The client's own name for this attempt, unique for ever.
		order_reference: Groups the attempts of one order.
		amount: Decimal text in the major unit, such as "10.50" (DE 4). Required, but for a balance inquiry, which has none.
		currency: ISO 4217, such as EUR (DE 49).
		acquirer_id: DE 32; the link's own when absent.
		partial_approval: Whether an approval of a lower amount is taken. Without it such an answer is reversed.
		link: The scheme's link; the default one when absent.
		elements: Further data elements by number. They go to the wire and are not stored unless the link's profile says so.`))
}

func exampleRequest() map[string]any {
	return map[string]any{
		"client_reference": "order-4711-1", "type": "purchase", "amount": "10.50", "currency": "EUR",
		"card":     map[string]any{"pan": "4111111111111111", "expiry": "3012"},
		"merchant": map[string]any{"terminal_id": "TERM0001", "acceptor_id": "SHOP00000000001", "mcc": "5411"},
		"pos":      map[string]any{"entry_mode": "051", "condition_code": "00"},
	}
}

func authorizationSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": id(), "state": {Type: huma.TypeString, Enum: anyOf(states)},
		"outcome":       word(string(gateway.Succeeded), string(gateway.Failed), string(gateway.Unknown)),
		"state_version": integerSchema(1, 0), "reason": text(), "retry": retrySchema(), "sent": sentSchema(),
		"response_code": text(), "approval_code": text(), "stan": text(), "rrn": text(), "transmission_date_time": text(),
		"link": text(), "type": text(), "amount": text(), "approved_amount": text(), "currency": text(),
		"client_reference": text(), "order_reference": text(), "pan": text(), "reversal": refSchema("Reversal"),
		"captured_amount": text(), "reversed_amount": text(), "returned_amount": text(), "remaining_amount": text(),
		"balances": {Type: huma.TypeArray, Items: refSchema("CardBalance")}, "captures": {Type: huma.TypeArray, Items: refSchema("Duty")},
		"reversals":  {Type: huma.TypeArray, Items: refSchema("Duty")},
		"created_at": moment(), "updated_at": moment(),
	}, "id", "state", "outcome", "state_version", "sent", "stan", "rrn", "transmission_date_time", "link", "type", "amount",
		"currency", "client_reference", "pan", "created_at", "updated_at"), `
		outcome: unknown is neither: the gateway is finding out or undoing it.
		state_version: Grows by one with each change of the state.
		reason: Why the state is what it is, where it is not a plain answer.
		response_code: DE 39.
		approval_code: DE 38.
		stan: DE 11.
		rrn: DE 37.
		transmission_date_time: DE 7, UTC, MMDDhhmmss.
		approved_amount: Lower than amount after a partial approval.
		pan: Masked.
		captured_amount: Completed by captures, or moved by a financial approval.
		reversed_amount: Taken back by partial reversals.
		returned_amount: Of what was captured, undone since.
		remaining_amount: Of an approved hold, what can still be captured or taken back.
		balances: As a balance inquiry's answer named them (DE 54).
		reversal: There when the authorisation is owed to be undone.
		captures: In a read of this authorisation alone.
		reversals: Of a part, or of a capture; in a read of this authorisation alone.`)
}

func reversalSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": id(), "state": word("owed", "acknowledged", "suspended"), "closed_as": closedAs(), "attempts": integerSchema(0, 0), "next_at": orNull(moment()),
		"reason": text(), "response_code": text(), "needs_attention": flag(),
	}, "id", "state", "attempts", "next_at", "reason"), `
		state: owed is being delivered; suspended waits for a person, and the hold stays.
		next_at: When the next attempt is due; null when none is.
		response_code: DE 39 of the response that decided.
		needs_attention: An exception is open for it.`)
}

func problemSchema() *huma.Schema {
	fault := objectSchema(map[string]*huma.Schema{"field": text(), "rule": text()}, "field", "rule")
	return describe(objectSchema(map[string]*huma.Schema{
		"type": text(), "title": text(), "status": integerSchema(400, 599), "code": {Type: huma.TypeString, Enum: anyOf(gateway.Codes())},
		"detail": text(), "sent": sentSchema(), "retry": retrySchema(), "resource": text(), "faults": {Type: huma.TypeArray, Items: fault},
	}, "type", "title", "status", "code", "sent", "retry"), `
		code: What went wrong, for programs.
		sent: What is known about bytes on their way to a scheme.
		retry: What may be done with the same intent: after means wait (Retry-After) and repeat with the same key.
		resource: The resource the problem speaks of.
		faults: Every broken rule of the request at once.`)
}

func linkSchema() *huma.Schema {
	s := lineSchema()
	for name, property := range map[string]*huma.Schema{"name": text(), "held": flag(), "planned_sign_off": flag(), "reason": text(),
		"business_date": {Type: huma.TypeString, Format: "date"}, "lines": {Type: huma.TypeArray, Items: lineSchema()}} {
		s.Properties[name] = property
	}
	s.Required = append(s.Required, "name", "held", "planned_sign_off", "lines")
	return describe(s, `
		held: No new requests are taken, by a person's decision.
		planned_sign_off: Signed off by a person's decision, until it is signed on again.
		reason: Of the last decision.
		business_date: As the scheme's last cutover notice gave it.
		lines: The link's own values are those of its best line, with counts of all.`)
}

func lineSchema() *huma.Schema {
	down := objectSchema(map[string]*huma.Schema{"reason": text(), "cause": text(), "at": moment()}, "reason", "at")
	return describe(objectSchema(map[string]*huma.Schema{
		"address": text(), "state": word("down", "connecting", "signing_on", "signed_on", "signed_off", "signing_off"),
		"since": moment(), "connected": flag(), "signed_on": flag(), "signed_off_by": word("peer", "planned"), "pending": integerSchema(0, 0),
		"last_received_at": orNull(moment()), "echo_round_trip_seconds": orNull(&huma.Schema{Type: huma.TypeNumber}), "last_down": orNull(down),
		"certificate_until": moment(), "frames_sent": integerSchema(0, 0), "frames_received": integerSchema(0, 0), "keep_alives": integerSchema(0, 0),
		"unmatched": integerSchema(0, 0), "reconnects": integerSchema(0, 0), "answers_dropped": integerSchema(0, 0), "throttled": integerSchema(0, 0),
	}, "address", "state", "since", "connected", "signed_on", "pending"), `
		signed_on: Financial traffic flows.
		pending: Requests on the wire without an answer.
		unmatched: Messages that no waiting request asked for.
		certificate_until: When the peer's certificate or ours ends.
		throttled: How often reading paused, since the peer sends more than its budgets.`)
}

func exceptionSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": id(), "kind": text(), "link": text(), "subject_id": id(), "detail": text(), "opened_at": moment(),
	}, "id", "kind", "link", "subject_id", "detail", "opened_at"), `
		subject_id: What needs a person, such as a reversal.`)
}

func accountSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": integerSchema(1, 0), "link": text(), "kind": word("customer", "settlement", "suspense"), "currency": text(), "normal": word("debit", "credit"),
	}, "id", "link", "kind", "currency", "normal"), `
		kind: customer is what we owe the tenant; settlement what the scheme owes us; suspense what nobody has explained yet.
		normal: The side that raises the balance.`)
}

func balanceSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"account": integerSchema(1, 0), "currency": text(), "at": orNull(moment()), "posted": text(), "held": text(), "available": text(),
	}, "account", "currency", "at", "posted", "held", "available"), `
		at: As asked for; null is now.
		posted: What has moved, positive on the account's normal side.
		held: What pending entries would take.
		available: posted less what is held.`)
}

func entrySchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": integerSchema(1, 0), "key": text(), "resource": text(), "booked_at": moment(), "value_date": {Type: huma.TypeString, Format: "date"},
		"layer": word("pending", "posted"), "step": word("hold", "release", "debit", "credit", "return", "compensate"), "side": word("debit", "credit"),
		"amount": text(), "currency": text(), "other_account": integerSchema(1, 0), "correction": flag(), "client_reference": text(), "source_ref": text(),
	}, "id", "key", "resource", "booked_at", "value_date", "layer", "step", "side", "amount", "currency", "other_account", "correction",
		"client_reference", "source_ref"), `
		key: <intent>:<transaction>:<step>:<n>, once for ever.
		resource: The authorisation it belongs to.
		side: The side of the account that was asked for.
		correction: Undoes an entry that should not stand; a refund is not a correction.`)
}
