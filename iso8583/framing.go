package iso8583

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// What the length in front of a frame counts, besides the message.
const (
	IncludesNone   = "none"   // the message alone
	IncludesHeader = "header" // the header and the message
	IncludesLength = "length" // itself, the header and the message
)

// How the length stands on the wire.
const (
	LengthBinary2 = "binary2" // two bytes, high byte first
	LengthASCII4  = "ascii4"  // four digits
)

const (
	defaultMaxBytes = 8192 // a card message has a few hundred; ASCII digits read as a binary length are always more
	defaultMinBytes = 1    // shorter than a message: such a frame is refused as a message, and the line goes on
	maxHeaderBytes  = 64
	maxASCII4       = 9999
	maxBinary2      = 1<<16 - 1
)

// FramingConfig is how messages are told apart on the stream, as a link profile has it. The zero value is DefaultFramingConfig.
type FramingConfig struct {
	// Length is binary2 (default) or ascii4.
	Length string `yaml:"length"`
	// Includes is none (default), header or length: what the length counts besides the message. length means itself and the header.
	Includes string `yaml:"includes"`
	// Header is what stands between length and message in every frame, as hexadecimal digits; received frames must have the same.
	Header string `yaml:"header"`
	// MinBytes and MaxBytes limit a message, without length and header; 0 for the defaults, 1 and 8192.
	MinBytes int `yaml:"min_bytes"`
	MaxBytes int `yaml:"max_bytes"`
}

// DefaultFramingConfig is a length of two bytes that counts the message alone, no header, messages of 1 to 8192 bytes.
func DefaultFramingConfig() FramingConfig {
	return FramingConfig{Length: LengthBinary2, Includes: IncludesNone, MinBytes: defaultMinBytes, MaxBytes: defaultMaxBytes}
}

// Framing reads and writes frames. It is read-only: any number of goroutines may use it.
type Framing struct {
	ascii      bool
	includes   string
	lengthSize int
	header     []byte
	counted    int // bytes that the length counts besides the message
	minBytes   int
	maxBytes   int
	spec       *Spec // nil: wrong settings are found only where the bytes alone show them
	others     []otherIncludes
}

// otherIncludes is a setting the peer might have instead of ours, and by how much its lengths are greater.
type otherIncludes struct {
	name  string
	delta int
}

// FrameError tells that the stream is not made of frames as the profile has them. It cannot be read any further.
type FrameError struct {
	Rule string // what is wrong, and which setting to look at
}

func (e *FrameError) Error() string { return "frame: " + e.Rule }

// Build checks the settings. The error joins every fault found, each beginning with the key it is at.
func (c FramingConfig) Build() (*Framing, error) {
	f := &Framing{minBytes: c.MinBytes, maxBytes: c.MaxBytes}
	var faults []error
	fault := func(form string, args ...any) { faults = append(faults, fmt.Errorf(form, args...)) }
	most := maxBinary2
	switch c.Length {
	case LengthBinary2, "":
		f.lengthSize = 2
	case LengthASCII4:
		f.ascii, f.lengthSize, most = true, 4, maxASCII4
	default:
		fault("length: binary2 or ascii4, not %q", c.Length)
	}
	header, err := hex.DecodeString(c.Header)
	if err != nil || len(header) > maxHeaderBytes {
		fault("header: at most %d bytes as hexadecimal digits", maxHeaderBytes)
	}
	f.header = header
	counts := map[string]int{IncludesNone: 0, IncludesHeader: len(f.header), IncludesLength: f.lengthSize + len(f.header)}
	f.includes = c.Includes
	if f.includes == "" {
		f.includes = IncludesNone
	}
	var known bool
	if f.counted, known = counts[f.includes]; !known {
		fault("includes: none, header or length, not %q", c.Includes)
	}
	for _, name := range []string{IncludesNone, IncludesHeader, IncludesLength} {
		if delta := counts[name] - f.counted; delta != 0 && !slices.ContainsFunc(f.others, func(o otherIncludes) bool { return o.delta == delta }) {
			f.others = append(f.others, otherIncludes{name, delta})
		}
	}
	if f.minBytes == 0 {
		f.minBytes = defaultMinBytes
	}
	if f.maxBytes == 0 {
		f.maxBytes = defaultMaxBytes
	}
	if f.maxBytes < 1 || f.maxBytes > most-f.counted {
		fault("max_bytes: 1 to %d, not %d", most-f.counted, f.maxBytes)
	}
	if f.minBytes < 1 || f.minBytes > f.maxBytes {
		fault("min_bytes: 1 to max_bytes, not %d", f.minBytes)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return f, nil
}

// Diagnosing gives the same framing with knowledge of the messages, which lets Read prove that the peer's lengths count something else than
// the profile says, also where it would otherwise wait for bytes that never come.
func (f *Framing) Diagnosing(s *Spec) *Framing {
	diagnosing := *f
	diagnosing.spec = s
	return &diagnosing
}

// Append appends the whole frame, which goes to the socket in one write.
func (f *Framing) Append(dst, body []byte) ([]byte, error) {
	if len(body) < f.minBytes || len(body) > f.maxBytes {
		return dst, fmt.Errorf("frame message: %d bytes, where the profile allows %d to %d", len(body), f.minBytes, f.maxBytes)
	}
	n := len(body) + f.counted
	if f.ascii {
		dst = append(dst, '0'+byte(n/1000), '0'+byte(n/100%10), '0'+byte(n/10%10), '0'+byte(n%10))
	} else {
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	}
	dst = append(dst, f.header...)
	return append(dst, body...), nil
}

// Read gives the next frame's message, in buf or a larger buffer that replaces it, never more than the profile's greatest message. A frame
// without a message is a keep-alive: empty body, no error. io.EOF comes only between frames. What breaks the framing is a *FrameError.
func (f *Framing) Read(r *bufio.Reader, buf []byte) ([]byte, error) {
	announced, err := f.readLength(r)
	if err != nil {
		return nil, err
	}
	if announced == 0 { // whatever the length counts; no header follows
		return buf[:0], nil
	}
	n := announced - f.counted
	if n < 0 || n > f.maxBytes || n > 0 && n < f.minBytes {
		return nil, f.badLength(announced)
	}
	if err := f.readHeader(r); err != nil {
		return nil, err
	}
	body := slices.Grow(buf[:0], n)
	for len(body) < n {
		if r.Buffered() == 0 {
			if err := f.diagnoseSurplus(body, n); err != nil {
				return nil, err
			}
		}
		got, err := r.Read(body[len(body):n])
		body = body[:len(body)+got]
		if err != nil && len(body) < n {
			return nil, broken(err)
		}
	}
	if err := f.diagnose(body, r); err != nil {
		return nil, err
	}
	return body, nil
}

func (f *Framing) readLength(r *bufio.Reader) (int, error) {
	field, err := r.Peek(f.lengthSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(field) == 0 {
			return 0, io.EOF
		}
		return 0, broken(err)
	}
	n := 0
	if f.ascii {
		for _, c := range field {
			if c < '0' || c > '9' {
				return 0, &FrameError{"the length is not 4 digits; look at framing.length, or at framing.includes if frames came before"}
			}
			n = n*10 + int(c-'0')
		}
	} else {
		n = int(binary.BigEndian.Uint16(field))
	}
	_, err = r.Discard(f.lengthSize)
	return n, err
}

func (f *Framing) badLength(announced int) error {
	rule := fmt.Sprintf("the length says %d, where the profile allows %d to %d", announced, f.minBytes+f.counted, f.maxBytes+f.counted)
	high, low := byte(announced>>8), byte(announced)
	switch {
	case announced < f.counted:
		rule += fmt.Sprintf("; framing.includes is %q, so it counts at least %d", f.includes, f.counted)
	case !f.ascii && classes[high] == digit && classes[low] == digit:
		rule += "; its bytes are digits: framing.length may be ascii4, or framing.includes may be wrong if frames came before"
	}
	return &FrameError{rule}
}

func (f *Framing) readHeader(r *bufio.Reader) error {
	if len(f.header) == 0 {
		return nil
	}
	header, err := r.Peek(len(f.header))
	if err != nil {
		return broken(err)
	}
	if !bytes.Equal(header, f.header) {
		return &FrameError{"the header is not the profile's framing.header"}
	}
	_, err = r.Discard(len(f.header))
	return err
}

// diagnose looks at a frame's message that the spec cannot read whole, when another setting's length would make it whole.
func (f *Framing) diagnose(body []byte, r *bufio.Reader) error {
	if f.spec == nil || len(body) == 0 {
		return nil
	}
	var p Peeked
	if f.spec.Peek(body, &p) == nil {
		return nil
	}
	for _, other := range f.others {
		switch {
		case other.delta > 0 && len(body) > other.delta && f.spec.Peek(body[:len(body)-other.delta], &p) == nil:
			return f.wrongIncludes(other)
		case other.delta < 0 && r.Buffered() >= -other.delta:
			rest, err := r.Peek(-other.delta)
			if err == nil && f.spec.Peek(slices.Concat(body, rest), &p) == nil {
				return f.wrongIncludes(other)
			}
		}
	}
	return nil
}

// diagnoseSurplus looks at what has come of a frame before waiting for the rest: if it is a whole message already, and exactly those bytes
// are missing by which another setting's lengths are greater, they will never come.
func (f *Framing) diagnoseSurplus(soFar []byte, n int) error {
	if f.spec == nil {
		return nil
	}
	for _, other := range f.others {
		if other.delta != n-len(soFar) {
			continue
		}
		var p Peeked
		if f.spec.Peek(soFar, &p) == nil {
			return f.wrongIncludes(other)
		}
	}
	return nil
}

func (f *Framing) wrongIncludes(other otherIncludes) error {
	amount, direction := other.delta, "more"
	if amount < 0 {
		amount, direction = -amount, "less"
	}
	return &FrameError{fmt.Sprintf("the length is off by %d: it counts %d bytes %s than the message has under framing.includes %q; the peer's is %q",
		amount, amount, direction, f.includes, other.name)}
}

// broken is the error of a stream that ends or fails within a frame.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read frame: %w", err)
}
