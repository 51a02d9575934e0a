package iso8583

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestOriginalDataElements_Layout(t *testing.T) {
	t.Parallel()
	o := OriginalDataElements{MTI: MTIAuthorizationRequest, STAN: "000123", TransmissionDateTime: "1201094501", AcquirerID: "123456"}
	got, err := o.Encode()
	noError(t, err)
	if want := "0100" + "000123" + "1201094501" + "00000123456" + "00000000000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	back, err := ParseOriginalDataElements(got)
	if err != nil || back != o {
		t.Errorf("%+v, %v, want %+v", back, err, o)
	}
}

// TestOriginalDataElements_J29_WrongOrderIsRefused: DE 90 built as MTI + DE 7 + DE 7 + DE 32 + zeros, which a host rejected.
func TestOriginalDataElements_J29_WrongOrderIsRefused(t *testing.T) {
	t.Parallel()
	wrong := "0100" + "1203104501" + "1203104501" + "12345678901" + "00000"
	for _, s := range []string{wrong, wrong + "00", wrong + "0000000"} {
		_, err := ParseOriginalDataElements(s)
		refusesElement(t, err, OriginalData, "1203104501")
	}
}

func TestOriginalDataElements_Validation(t *testing.T) {
	t.Parallel()
	good := OriginalDataElements{MTI: MTIFinancialAdvice, STAN: "999999", TransmissionDateTime: "0229235959", AcquirerID: "1", ForwarderID: "12345678901"}
	_, err := good.Encode()
	noError(t, err)
	for name, spoil := range map[string]func(*OriginalDataElements){
		"no type":          func(o *OriginalDataElements) { o.MTI = 0 },
		"a response":       func(o *OriginalDataElements) { o.MTI = MTIAuthorizationResponse },
		"short STAN":       func(o *OriginalDataElements) { o.STAN = "123" },
		"STAN of zeros":    func(o *OriginalDataElements) { o.STAN = "000000" },
		"STAN with sign":   func(o *OriginalDataElements) { o.STAN = "-00123" },
		"no date":          func(o *OriginalDataElements) { o.TransmissionDateTime = "" },
		"month 13":         func(o *OriginalDataElements) { o.TransmissionDateTime = "1301000000" },
		"30 February":      func(o *OriginalDataElements) { o.TransmissionDateTime = "0230000000" },
		"hour 24":          func(o *OriginalDataElements) { o.TransmissionDateTime = "0101240000" },
		"long acquirer":    func(o *OriginalDataElements) { o.AcquirerID = "123456789012" },
		"letters":          func(o *OriginalDataElements) { o.ForwarderID = "12A" },
		"spaces in the id": func(o *OriginalDataElements) { o.AcquirerID = "1234567890 " },
	} {
		o := good
		spoil(&o)
		if _, err := o.Encode(); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			refusesElement(t, err, OriginalData)
		}
	}
	for _, s := range []string{"", strings.Repeat("0", 42), strings.Repeat("0", 41), "0110" + strings.Repeat("1", 38), strings.Repeat("A", 42)} {
		if _, err := ParseOriginalDataElements(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestOriginalDataElements_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := OriginalDataElements{
			MTI:                  rapid.SampledFrom([]MTI{0x0100, 0x0200, 0x0220, 0x0120}).Draw(t, "mti"),
			STAN:                 rapid.StringMatching(`[0-9]{5}[1-9]`).Draw(t, "stan"),
			TransmissionDateTime: rapid.StringMatching(`(0[1-9]|1[0-2])(0[1-9]|1[0-9]|2[0-8])([01][0-9]|2[0-3])[0-5][0-9][0-5][0-9]`).Draw(t, "time"),
			AcquirerID:           rapid.StringMatching(`([1-9][0-9]{0,10})?`).Draw(t, "acquirer"),
			ForwarderID:          rapid.StringMatching(`([1-9][0-9]{0,10})?`).Draw(t, "forwarder"),
		}
		s, err := o.Encode()
		if err != nil || len(s) != 42 {
			t.Fatalf("%q, %v", s, err)
		}
		if back, err := ParseOriginalDataElements(s); err != nil || back != o {
			t.Fatalf("%+v, %v", back, err)
		}
	})
}
