package iso8583

import (
	"bufio"
	"bytes"
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

// Which TPDU a received frame must carry, as seen from the side that dials.
const (
	TPDUSwapped = "swapped" // the request's, with its two addresses exchanged
	TPDUSame    = "same"    // the request's, for hosts that do not exchange them
	TPDUAny     = "any"     // any five bytes, for hosts behind several concentrators
)

const (
	defaultMaxBytes = 8192 // a card message has a few hundred; ASCII digits read as a binary length are always more
	defaultMinBytes = 1    // shorter than a message: such a frame is refused as a message, and the line goes on
	maxHeaderBytes  = 64
	tpduBytes       = 5 // protocol, destination (2), origin (2)
)

// FramingConfig is how messages are told apart on the stream, as a link profile has it. The zero value is DefaultFramingConfig.
type FramingConfig struct {
	// Length is binary2 (default), binary4, ascii4, bcd2 or vml.
	Length string `yaml:"length"`
	// Includes is none (default), header or length: what the length counts besides the message. length means itself and the header. A
	// TPDU is a header too.
	Includes string `yaml:"includes"`
	// Header is what stands between length and message in every frame we write, as hexadecimal digits; received frames must have the
	// same, unless MaxHeaderBytes says that theirs vary.
	Header string `yaml:"header"`
	// MaxHeaderBytes above 0 tells that the first byte of every header is the header's own length, itself included, and how long a
	// received one may be: such as 26 where Visa's 22 bytes grow in a rejected message. A header without a message is a notice of the
	// network's session control, and is read as a keep-alive.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// TPDU, with a request, stands in the place of Header.
	TPDU TPDUConfig `yaml:"tpdu"`
	// MinBytes and MaxBytes limit a message, without length and header; 0 for the defaults, 1 and 8192.
	MinBytes int `yaml:"min_bytes"`
	MaxBytes int `yaml:"max_bytes"`
}

// TPDUConfig is a header of five bytes: one that names the protocol (60), two of the destination's address, two of the origin's.
type TPDUConfig struct {
	// Request is what the side that dials writes, as ten hexadecimal digits; empty for no TPDU.
	Request string `yaml:"request"`
	// Received is what comes back: swapped (default), same or any.
	Received string `yaml:"received"`
}

// DefaultFramingConfig is a length of two bytes that counts the message alone, no header, messages of 1 to 8192 bytes.
func DefaultFramingConfig() FramingConfig {
	return FramingConfig{Length: LengthBinary2, Includes: IncludesNone, TPDU: TPDUConfig{Received: TPDUSwapped},
		MinBytes: defaultMinBytes, MaxBytes: defaultMaxBytes}
}

// Framing reads and writes frames. It is read-only: any number of goroutines may use it.
type Framing struct {
	form      *lengthForm
	includes  string
	write     []byte // the header of what we write
	want      []byte // the header of what we read, where it is always the same
	tpdu      string // TPDUSwapped, TPDUSame or TPDUAny; "" for no TPDU
	maxHeader int    // of headers whose first byte is their length; 0 where none vary
	minBytes  int
	maxBytes  int
	spec      *Spec // nil: wrong settings are found only where the bytes alone show them
}

// FrameError tells that the stream is not made of frames as the profile has them. It cannot be read any further.
type FrameError struct {
	Rule string // what is wrong, and which setting to look at
}

func (e *FrameError) Error() string { return "frame: " + e.Rule }

// Build checks the settings. The error joins every fault found, each beginning with the key it is at.
func (c FramingConfig) Build() (*Framing, error) {
	f := &Framing{includes: c.Includes, maxHeader: c.MaxHeaderBytes, minBytes: c.MinBytes, maxBytes: c.MaxBytes}
	var faults []error
	fault := func(form string, args ...any) { faults = append(faults, fmt.Errorf(form, args...)) }
	if f.form = lengthFormOf(c.Length); f.form == nil {
		fault("length: %s, not %q", lengthNames, c.Length)
		f.form = lengthFormOf(LengthBinary2) // so that the rest can be checked
	}
	if f.includes == "" {
		f.includes = IncludesNone
	}
	if !slices.Contains(allIncludes[:], f.includes) {
		fault("includes: none, header or length, not %q", c.Includes)
	}
	c.setHeader(f, fault)
	c.setTPDU(f, fault)
	if f.minBytes == 0 {
		f.minBytes = defaultMinBytes
	}
	if f.maxBytes == 0 {
		f.maxBytes = defaultMaxBytes
	}
	most := min(f.form.most-f.counted(f.includes, max(len(f.write), f.maxHeader)), maxBodyBytes)
	if f.maxBytes < 1 || f.maxBytes > most {
		fault("max_bytes: 1 to %d, not %d", most, f.maxBytes)
	}
	if f.minBytes < 1 || f.minBytes > f.maxBytes {
		fault("min_bytes: 1 to max_bytes, not %d", f.minBytes)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return f, nil
}

func (c FramingConfig) setHeader(f *Framing, fault func(form string, args ...any)) {
	header, err := hex.DecodeString(c.Header)
	if err != nil || len(header) > maxHeaderBytes {
		fault("header: at most %d bytes as hexadecimal digits", maxHeaderBytes)
		header = nil
	}
	f.write, f.want = header, header
	if f.maxHeader == 0 {
		return
	}
	f.want = nil
	switch {
	case f.maxHeader < 0 || f.maxHeader > maxHeaderBytes:
		fault("max_header_bytes: 0 where headers do not vary, at most %d, not %d", maxHeaderBytes, f.maxHeader)
		f.maxHeader = 0
	case err == nil && (len(header) == 0 || int(header[0]) != len(header) || len(header) > f.maxHeader):
		fault("header: begins with its own length where max_header_bytes says that headers vary, and is no longer than that")
	}
}

func (c FramingConfig) setTPDU(f *Framing, fault func(form string, args ...any)) {
	received := c.TPDU.Received
	if received == "" {
		received = TPDUSwapped
	}
	if received != TPDUSwapped && received != TPDUSame && received != TPDUAny {
		fault("tpdu.received: swapped, same or any, not %q", received)
	}
	if c.TPDU.Request == "" {
		if received != TPDUSwapped {
			fault("tpdu.received: has no effect without tpdu.request")
		}
		return
	}
	request, err := hex.DecodeString(c.TPDU.Request)
	if err != nil || len(request) != tpduBytes {
		fault("tpdu.request: %d bytes as hexadecimal digits, such as 6000030000", tpduBytes)
		return
	}
	if c.Header != "" || c.MaxHeaderBytes != 0 {
		fault("tpdu.request: stands in the place of header and max_header_bytes, which stay empty")
	}
	f.tpdu, f.write, f.want = received, request, nil
	switch received {
	case TPDUSame:
		f.want = request
	case TPDUSwapped:
		f.want = swapped(request)
	}
}

// swapped is a TPDU with destination and origin exchanged.
func swapped(tpdu []byte) []byte {
	return []byte{tpdu[0], tpdu[3], tpdu[4], tpdu[1], tpdu[2]}
}

// counted is what a length counts besides the message, with a header of so many bytes.
func (f *Framing) counted(includes string, header int) int {
	switch includes {
	case IncludesHeader:
		return header
	case IncludesLength:
		return f.form.size + header
	}
	return 0
}

// Peer gives the same framing as the side that is dialled has it: it reads the request's TPDU and writes the one that comes back. Without
// a TPDU both sides are alike.
func (f *Framing) Peer() *Framing {
	peer := *f
	switch f.tpdu {
	case TPDUSwapped:
		peer.write, peer.want = f.want, f.write
	case TPDUAny:
		peer.write = swapped(f.write)
	}
	return &peer
}

// Append appends the whole frame, which goes to the socket in one write.
func (f *Framing) Append(dst, body []byte) ([]byte, error) { return f.append(dst, body, f.write) }

// AppendReply does the same for the answer to a frame whose header ReadWithHeader gave: its TPDU goes back with its addresses exchanged,
// or as it came where the profile says so. Where frames have no TPDU it is Append.
func (f *Framing) AppendReply(dst, body, received []byte) ([]byte, error) {
	switch {
	case f.tpdu == "":
		return f.Append(dst, body)
	case len(received) != tpduBytes:
		return dst, fmt.Errorf("frame reply: the header answered has %d bytes, where a TPDU has %d", len(received), tpduBytes)
	case f.tpdu == TPDUSame:
		return f.append(dst, body, received)
	}
	return f.append(dst, body, swapped(received))
}

func (f *Framing) append(dst, body, header []byte) ([]byte, error) {
	if len(body) < f.minBytes || len(body) > f.maxBytes {
		return dst, fmt.Errorf("frame message: %d bytes, where the profile allows %d to %d", len(body), f.minBytes, f.maxBytes)
	}
	dst = f.form.append(dst, len(body)+f.counted(f.includes, len(header)))
	dst = append(dst, header...)
	return append(dst, body...), nil
}

// Read gives the next frame's message, in buf or a larger buffer that replaces it, never more than the profile's greatest message. A frame
// without a message is a keep-alive: empty body, no error; it asks for no answer. io.EOF comes only between frames. What breaks the
// framing is a *FrameError. The reader's buffer must hold the longest header.
func (f *Framing) Read(r *bufio.Reader, buf []byte) ([]byte, error) { return f.read(r, buf, nil) }

// ReadWithHeader does the same and gives the frame's header, in header's room or a larger one; empty for a frame that has none.
func (f *Framing) ReadWithHeader(r *bufio.Reader, buf, header []byte) (body, received []byte, err error) {
	received = header[:0]
	body, err = f.read(r, buf, &received)
	return body, received, err
}

func (f *Framing) read(r *bufio.Reader, buf []byte, kept *[]byte) ([]byte, error) {
	announced, err := f.readLength(r)
	if err != nil {
		return nil, err
	}
	if announced == 0 { // whatever the length counts; no header follows
		return buf[:0], nil
	}
	header, err := f.headerSize(r, announced)
	if err != nil {
		return nil, err
	}
	n := announced - f.counted(f.includes, header)
	if n < 0 || n > f.maxBytes || n > 0 && n < f.minBytes {
		return nil, f.badLength(announced, header)
	}
	if err := f.readHeader(r, header, kept); err != nil {
		return nil, err
	}
	body := slices.Grow(buf[:0], n)
	for len(body) < n {
		if r.Buffered() == 0 {
			if err := f.diagnoseSurplus(body, announced, header); err != nil {
				return nil, err
			}
		}
		got, err := r.Read(body[len(body):n])
		body = body[:len(body)+got]
		if err != nil && len(body) < n {
			return nil, broken(err)
		}
	}
	if err := f.diagnose(body, r, announced, header); err != nil {
		return nil, err
	}
	return body, nil
}

func (f *Framing) readLength(r *bufio.Reader) (int, error) {
	field, err := r.Peek(f.form.size)
	if err != nil {
		if errors.Is(err, io.EOF) && len(field) == 0 {
			return 0, io.EOF
		}
		return 0, broken(err)
	}
	n, ok := f.form.read(field)
	if !ok {
		return 0, &FrameError{f.form.wrong}
	}
	_, err = r.Discard(f.form.size)
	return n, err
}

// headerSize is the size of this frame's header; where headers vary, its first byte says so and must have arrived.
func (f *Framing) headerSize(r *bufio.Reader, announced int) (int, error) {
	switch {
	case f.tpdu != "":
		return tpduBytes, nil
	case f.maxHeader == 0:
		return len(f.want), nil
	case announced > f.maxBytes+f.counted(f.includes, f.maxHeader): // no header makes this a good length, so wait for none
		return 0, f.badLength(announced, f.maxHeader)
	}
	first, err := r.Peek(1)
	if err != nil {
		return 0, broken(err)
	}
	size := int(first[0])
	if size < 1 || size > f.maxHeader {
		return 0, &FrameError{fmt.Sprintf("the header's first byte says %d, where a header has 1 to %d bytes; look at framing.max_header_bytes", size, f.maxHeader)}
	}
	return size, nil
}

// readHeader takes the header off the stream. Its bytes are in no error: out of step, they may be part of a message.
func (f *Framing) readHeader(r *bufio.Reader, size int, kept *[]byte) error {
	if size == 0 {
		return nil
	}
	header, err := r.Peek(size)
	if err != nil {
		return broken(err)
	}
	if f.want != nil && !bytes.Equal(header, f.want) {
		return f.wrongHeader(header)
	}
	if kept != nil {
		*kept = append((*kept)[:0], header...)
	}
	_, err = r.Discard(size)
	return err
}

func (f *Framing) wrongHeader(header []byte) error {
	if f.tpdu == "" {
		return &FrameError{"the header is not the profile's framing.header"}
	}
	rule := "the TPDU is not the one that framing.tpdu says comes back"
	if bytes.Equal(swapped(header), f.want) {
		rule += "; its addresses are the other way round: look at framing.tpdu.received"
	}
	return &FrameError{rule}
}

// broken is the error of a stream that ends or fails within a frame.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read frame: %w", err)
}
