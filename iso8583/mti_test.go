package iso8583

import "testing"

func TestMTI_RepeatsResponsesAndExchanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ mti, withoutRepeat, repeat, response, exchange string }{
		{"0100", "0100", "0101", "0110", "0100"},
		{"0101", "0100", "0101", "0110", "0100"},
		{"0110", "0110", "0110", "0110", "0100"},
		{"0121", "0120", "0121", "0130", "0120"},
		{"0130", "0130", "0130", "0130", "0120"},
		{"0220", "0220", "0221", "0230", "0220"},
		{"0400", "0400", "0401", "0410", "0400"},
		{"0420", "0420", "0421", "0430", "0420"},
		{"0421", "0420", "0421", "0430", "0420"},
		{"0430", "0430", "0430", "0430", "0420"},
		{"0423", "0422", "0423", "0432", "0422"},
		{"0432", "0432", "0432", "0432", "0422"},
		{"0801", "0800", "0801", "0810", "0800"},
		{"0810", "0810", "0810", "0810", "0800"},
		{"0180", "0180", "0180", "0180", "0180"}, // function 8: private, in no pair
	} {
		m, err := ParseMTI(test.mti)
		noError(t, err)
		if got := []string{m.WithoutRepeat().String(), m.Repeat().String(), m.Response().String(), m.Exchange().String()}; got[0] != test.withoutRepeat ||
			got[1] != test.repeat || got[2] != test.response || got[3] != test.exchange {
			t.Errorf("%s: without repeat, repeat, response, exchange %v", test.mti, got)
		}
	}
	// A reversal may carry the STAN of its original: the class must keep their exchanges apart.
	if MTIAuthorizationResponse.Exchange() == MTIReversalAdviceResponse.Exchange() {
		t.Error("an authorisation and its reversal are one exchange")
	}
}

func TestMTI_Digits(t *testing.T) {
	t.Parallel()
	m := MTI(0x1423)
	if m.Version() != 1 || m.Class() != 4 || m.Function() != 2 || m.Origin() != 3 || m.String() != "1423" {
		t.Errorf("%d %d %d %d %s", m.Version(), m.Class(), m.Function(), m.Origin(), m)
	}
	if !m.IsRequest() || m.IsResponse() || !m.IsRepeat() || MTI(0x0180).IsRequest() || MTI(0x0180).IsResponse() || !MTIAuthorizationResponse.IsResponse() {
		t.Error("request, response or repeat told wrongly")
	}
	for _, text := range []string{"", "010", "01000", "01A0", "zzzz", "+100", "０１０"} {
		if _, err := ParseMTI(text); err == nil {
			t.Errorf("%q is taken as a message type", text)
		}
		if err := new(MTI).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is unmarshalled as a message type", text)
		}
	}
	text, err := MTIReversalAdviceRepeat.MarshalText()
	noError(t, err)
	var back MTI
	if err := back.UnmarshalText(text); err != nil || back != MTIReversalAdviceRepeat {
		t.Errorf("%s comes back as %s, %v", text, back, err)
	}
}
