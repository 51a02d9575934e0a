package iso8583

import (
	"bufio"
	"fmt"
	"slices"
)

var allIncludes = [...]string{IncludesNone, IncludesHeader, IncludesLength}

// otherSetting is a setting the peer might have instead of ours, and by how much the message is shorter under it.
type otherSetting struct {
	key, ours, theirs string
	delta             int
}

// Diagnosing gives the same framing with knowledge of the messages, which lets Read prove that the peer's lengths count something else than
// the profile says, or are written otherwise, also where it would wait for bytes that never come.
func (f *Framing) Diagnosing(s *Spec) *Framing {
	diagnosing := *f
	diagnosing.spec = s
	return &diagnosing
}

// others lists the settings under which this frame's message would have another length.
func (f *Framing) others(announced, header int) []otherSetting {
	var others []otherSetting
	add := func(o otherSetting) {
		if o.delta != 0 && !slices.ContainsFunc(others, func(have otherSetting) bool { return have.delta == o.delta }) {
			others = append(others, o)
		}
	}
	for _, includes := range allIncludes {
		add(otherSetting{"framing.includes", f.includes, includes, f.counted(includes, header) - f.counted(f.includes, header)})
	}
	field := f.form.append(nil, announced)
	for i := range lengthForms {
		if other := &lengthForms[i]; other.size == f.form.size {
			if n, ok := other.read(field); ok {
				add(otherSetting{"framing.length", f.form.name, other.name, announced - n})
			}
		}
	}
	return others
}

// badLength is the error of a length that no frame of the profile has, with what the bytes alone show.
func (f *Framing) badLength(announced, header int) error {
	counted := f.counted(f.includes, header)
	rule := fmt.Sprintf("the length says %d, where the profile allows %d to %d", announced, f.minBytes+counted, f.maxBytes+counted)
	switch {
	case announced < counted:
		rule += fmt.Sprintf("; framing.includes is %q, so it counts at least %d", f.includes, counted)
	case f.form.name != LengthASCII4 && allDigits(f.form.append(nil, announced)):
		rule += "; its bytes are digits: framing.length may be ascii4, or framing.includes may be wrong if frames came before"
	case f.form.name == LengthBinary4 && announced&0xFFFF == 0:
		rule += "; its last two bytes are zero: framing.length may be vml"
	case f.form.name == LengthBinary4:
		rule += "; framing.length may be binary2 or bcd2, with the message's first bytes read as part of it"
	}
	return &FrameError{rule}
}

func allDigits(text []byte) bool {
	return !slices.ContainsFunc(text, func(c byte) bool { return classes[c] != digit })
}

// diagnose looks at a frame's message that the spec cannot read whole, when another setting's length would make it whole.
func (f *Framing) diagnose(body []byte, r *bufio.Reader, announced, header int) error {
	if f.spec == nil || len(body) == 0 {
		return nil
	}
	var p Peeked
	if f.spec.Peek(body, &p) == nil {
		return nil
	}
	for _, other := range f.others(announced, header) {
		switch {
		case other.delta > 0 && len(body) > other.delta && f.spec.Peek(body[:len(body)-other.delta], &p) == nil:
			return other.diagnosis()
		case other.delta < 0 && r.Buffered() >= -other.delta:
			rest, err := r.Peek(-other.delta)
			if err == nil && f.spec.Peek(slices.Concat(body, rest), &p) == nil {
				return other.diagnosis()
			}
		}
	}
	return nil
}

// diagnoseSurplus looks at what has come of a frame before waiting for the rest: if it is a whole message already, and exactly those bytes
// are missing by which another setting's lengths are greater, they will never come.
func (f *Framing) diagnoseSurplus(soFar []byte, announced, header int) error {
	if f.spec == nil {
		return nil
	}
	var p Peeked
	if f.form.size == 2 && len(soFar) > 2 && allDigits(f.form.append(nil, announced)) && f.spec.Peek(soFar[2:], &p) == nil {
		return &FrameError{"the length's bytes are digits and two more digits follow: framing.length may be ascii4"}
	}
	missing := announced - f.counted(f.includes, header) - len(soFar)
	for _, other := range f.others(announced, header) {
		if other.delta != missing {
			continue
		}
		if f.spec.Peek(soFar, &p) == nil {
			return other.diagnosis()
		}
	}
	return nil
}

func (o otherSetting) diagnosis() error {
	amount, direction := o.delta, "more"
	if amount < 0 {
		amount, direction = -amount, "less"
	}
	return &FrameError{fmt.Sprintf("the length is off by %d: it says %d bytes %s than the message has under %s %q; the peer's is %q",
		amount, amount, direction, o.key, o.ours, o.theirs)}
}
