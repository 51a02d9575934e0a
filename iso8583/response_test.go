package iso8583

import (
	"strings"
	"testing"
)

func TestResponseActions_Of1987(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for action, codes := range map[ResponseAction]string{
		Approved:          "00 08 11 16",
		PartiallyApproved: "10 32",
		Declined:          "01 05 12 13 14 15 30 51 54 55 57 61 62 63 65 75 80 90 91 92 96",
		StillWorking:      "09",
		OutcomeUnknown:    "94 68 21 25 76 77 95 98 ZZ 99 0 000",
	} {
		for code := range strings.FieldsSeq(codes) {
			if got := s.AuthorizationAction(code); got != action {
				t.Errorf("authorisation, %s: %s, want %s", code, got, action)
			}
		}
	}
	if got := s.AuthorizationAction(""); got != OutcomeUnknown {
		t.Errorf("no response code: %s", got)
	}
	for action, codes := range map[ReversalAction]string{
		ReversalAcknowledged: "00",
		NothingToUndo:        "21 25 76 77 94",
		RetryLater:           "09 80 90 91 92 96",
		Suspend:              "30 05 12 63 98 ZZ",
	} {
		for code := range strings.FieldsSeq(codes) {
			if got := s.ReversalAction(code); got != action {
				t.Errorf("reversal, %s: %s, want %s", code, got, action)
			}
		}
	}
	if got := s.ReversalAction(""); got != Suspend {
		t.Errorf("no response code: %s", got)
	}
}

func TestResponseActions_ProfileOverrides(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{
		ResponseCodes:         map[string]string{"91": "outcome_unknown", "N1": "not_signed_on", "98": "declined"},
		ReversalResponseCodes: map[string]string{"12": "nothing_to_undo", "94": "suspend"},
	})
	if s.AuthorizationAction("91") != OutcomeUnknown || s.AuthorizationAction("N1") != NotSignedOn || s.AuthorizationAction("98") != Declined ||
		s.AuthorizationAction("00") != Approved || s.ReversalAction("12") != NothingToUndo || s.ReversalAction("94") != Suspend || s.ReversalAction("00") != ReversalAcknowledged {
		t.Error("the profile's codes do not lie over the table")
	}
	if other := Spec1987(BitmapBinary); other.AuthorizationAction("91") != Declined || other.ReversalAction("12") != Suspend {
		t.Error("one profile's codes reach another profile")
	}
}
