package iso8583

import (
	"maps"
	"slices"
	"strings"
)

// ResponseAction is what the answer to an authorisation or financial request means, by its response code (DE 39).
type ResponseAction uint8

// The actions. The zero value is the careful one.
const (
	OutcomeUnknown    ResponseAction = iota // nobody can say what the issuer holds: the request is reversed
	Approved                                // book the requested amount
	PartiallyApproved                       // book the amount of the answer's DE 4
	Declined                                // final, nothing is held
	StillWorking                            // an interim answer: keep waiting for the one that counts
	NotSignedOn                             // declined, since the peer believes that this link has not signed on
)

// ReversalAction is what the answer to a reversal means, by its response code.
type ReversalAction uint8

// The actions. The zero value is the careful one.
const (
	Suspend              ReversalAction = iota // a person must look; the hold stays
	ReversalAcknowledged                       // undone
	NothingToUndo                              // the peer holds nothing of the original: closed, and recorded as such
	RetryLater                                 // send the repeat again after a while
)

var responseActionNames = [...]string{
	OutcomeUnknown: "outcome_unknown", Approved: "approved", PartiallyApproved: "partially_approved", Declined: "declined",
	StillWorking: "still_working", NotSignedOn: "not_signed_on",
}

var reversalActionNames = [...]string{
	Suspend: "suspend", ReversalAcknowledged: "acknowledged", NothingToUndo: "nothing_to_undo", RetryLater: "retry_later",
}

// String gives the name that profiles use.
func (a ResponseAction) String() string { return nameOf(responseActionNames[:], int(a)) }

// String gives the name that profiles use.
func (a ReversalAction) String() string { return nameOf(reversalActionNames[:], int(a)) }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "invalid"
}

var responseActionsByName = byName[ResponseAction](responseActionNames[:])
var reversalActionsByName = byName[ReversalAction](reversalActionNames[:])

func byName[A ~uint8](names []string) map[string]A {
	m := make(map[string]A, len(names))
	for i, name := range names {
		m[name] = A(i)
	}
	return m
}

// authorizationActions is the 1987 list. Codes that hosts use in different senses, or that speak about a reversal, are not in it and
// so mean OutcomeUnknown: 20, 21, 22, 25, 68 (answered too late), 76, 77, 94 (a duplicate, of what?), 95, 98.
var authorizationActions = map[string]ResponseAction{
	"00": Approved, // approved
	"01": Declined, // refer to card issuer
	"02": Declined, // refer to card issuer, special condition
	"03": Declined, // invalid merchant
	"04": Declined, // pick up card
	"05": Declined, // do not honour
	"06": Declined, // error
	"07": Declined, // pick up card, special condition
	"08": Approved, // honour with identification
	"09": StillWorking,
	"10": PartiallyApproved,
	"11": Approved, // approved, VIP
	"12": Declined, // invalid transaction
	"13": Declined, // invalid amount
	"14": Declined, // invalid card number
	"15": Declined, // no such issuer
	"16": Approved, // approved, update track 3
	"17": Declined, // customer cancellation
	"18": Declined, // customer dispute
	"19": Declined, // re-enter transaction
	"23": Declined, // unacceptable transaction fee
	"30": Declined, // format error: nothing was decided, and the same bytes would only fail again
	"31": Declined, // bank not supported by switch
	"32": PartiallyApproved,
	"33": Declined, // expired card, pick up
	"34": Declined, // suspected fraud, pick up
	"35": Declined, // contact acquirer, pick up
	"36": Declined, // restricted card, pick up
	"37": Declined, // call acquirer security, pick up
	"38": Declined, // PIN tries exceeded, pick up
	"39": Declined, // no credit account
	"40": Declined, // function not supported
	"41": Declined, // lost card, pick up
	"42": Declined, // no universal account
	"43": Declined, // stolen card, pick up
	"44": Declined, // no investment account
	"51": Declined, // insufficient funds
	"52": Declined, // no chequing account
	"53": Declined, // no savings account
	"54": Declined, // expired card
	"55": Declined, // incorrect PIN
	"56": Declined, // no card record
	"57": Declined, // not permitted to cardholder
	"58": Declined, // not permitted to terminal
	"59": Declined, // suspected fraud
	"60": Declined, // contact acquirer
	"61": Declined, // exceeds withdrawal amount limit
	"62": Declined, // restricted card
	"63": Declined, // security violation
	"64": Declined, // original amount incorrect
	"65": Declined, // exceeds withdrawal frequency limit
	"66": Declined, // call acquirer security
	"67": Declined, // hard capture
	"75": Declined, // PIN tries exceeded
	"80": Declined, // system not available
	"90": Declined, // cutover in progress
	"91": Declined, // issuer or switch inoperative; a profile may reverse on it
	"92": Declined, // no route
	"93": Declined, // violation of law
	"96": Declined, // system malfunction; a profile may reverse on it
}

// reversalActions is the same for the answers to 0400 and 0420. 30 (format error) is not in it: the same bytes are never sent again.
var reversalActions = map[string]ReversalAction{
	"00": ReversalAcknowledged,
	"09": RetryLater,    // request in progress
	"21": NothingToUndo, // no action taken
	"25": NothingToUndo, // original not found
	"76": NothingToUndo, // original not found, in other hosts' lists
	"77": NothingToUndo, // original does not match
	"80": RetryLater,    // system not available
	"90": RetryLater,    // cutover in progress
	"91": RetryLater,    // issuer or switch inoperative
	"92": RetryLater,    // no route
	"94": NothingToUndo, // duplicate: it was reversed before
	"96": RetryLater,    // system malfunction
}

// AuthorizationAction says what a response code means in the answer to an authorisation. An unlisted or missing code means
// OutcomeUnknown.
func (s *Spec) AuthorizationAction(responseCode string) ResponseAction {
	return s.authorization[responseCode]
}

// ReversalAction says what a response code means in the answer to a reversal. An unlisted or missing code means Suspend.
func (s *Spec) ReversalAction(responseCode string) ReversalAction { return s.reversal[responseCode] }

// setActions lays a profile's codes over the table.
func setActions[A ~uint8](table map[string]A, key string, codes map[string]string, names map[string]A, r rule, fault faultFunc) {
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		at := key + "." + code
		action, ok := names[codes[code]]
		if !ok {
			fault(at, "one of %s, not %q", strings.Join(slices.Sorted(maps.Keys(names)), ", "), codes[code])
			continue
		}
		if len(code) != int(r.length) || checkFormat(r.format, ResponseCode, code) != nil {
			fault(at, "a response code (DE 39) is %d %s", r.length, responseCodeUnit(r.format))
			continue
		}
		table[code] = action
	}
}

func responseCodeUnit(f format) string {
	if f == numeric {
		return "digits"
	}
	return "letters or digits"
}
