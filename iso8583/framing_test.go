package iso8583

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// framings are the forms that links of this dialect have; the header is a TPDU, where none says otherwise.
var framings = map[string]FramingConfig{
	"binary2":                  {},
	"binary2, itself":          {Includes: IncludesLength},
	"binary4":                  {Length: LengthBinary4},
	"binary4, itself":          {Length: LengthBinary4, Includes: IncludesLength},
	"ascii4":                   {Length: LengthASCII4},
	"ascii4, itself":           {Length: LengthASCII4, Includes: IncludesLength},
	"bcd2":                     {Length: LengthBCD2},
	"bcd2, itself":             {Length: LengthBCD2, Includes: IncludesLength},
	"vml":                      {Length: LengthVML},
	"vml, itself":              {Length: LengthVML, Includes: IncludesLength},
	"TPDU":                     {Header: "6000010000"},
	"TPDU, counted":            {Header: "6000010000", Includes: IncludesHeader},
	"TPDU, itself and counted": {Header: "6000010000", Includes: IncludesLength},
	"ascii4, TPDU, counted":    {Length: LengthASCII4, Header: "6000010000", Includes: IncludesHeader},
	"binary4, TPDU, counted":   {Length: LengthBinary4, Header: "6000010000", Includes: IncludesHeader},
	"bcd2, TPDU, counted":      {Length: LengthBCD2, Header: "6000010000", Includes: IncludesHeader},
	"TPDU swapped, counted":    {TPDU: TPDUConfig{Request: "6000010002"}, Includes: IncludesHeader},
	"bcd2, any TPDU":           {Length: LengthBCD2, TPDU: TPDUConfig{Request: "6000010002", Received: TPDUAny}},
	"TPDU not swapped":         {TPDU: TPDUConfig{Request: "6000010002", Received: TPDUSame}},
	"varying header":           {Header: "0401020A", MaxHeaderBytes: 26},
	"varying, counted":         {Length: LengthVML, Header: "0401020A", MaxHeaderBytes: 26, Includes: IncludesHeader},
	"varying, all counted":     {Length: LengthBinary4, Header: "0401020A", MaxHeaderBytes: 26, Includes: IncludesLength},
}

func builtFraming(t testing.TB, cfg FramingConfig) *Framing {
	t.Helper()
	f, err := cfg.Build()
	noError(t, err)
	return f
}

// framed puts frames of the other side one after the other.
func framed(t testing.TB, f *Framing, bodies ...[]byte) []byte {
	t.Helper()
	var stream []byte
	var err error
	for _, body := range bodies {
		stream, err = f.Peer().Append(stream, body)
		noError(t, err)
	}
	return stream
}

func TestFraming_WireForms(t *testing.T) {
	t.Parallel()
	body := []byte("0800\x00\x20\x00\x00\x00\x00\x00\x00000001") // 18 bytes
	for name, want := range map[string]string{
		"binary2": "\x00\x12", "binary2, itself": "\x00\x14", "ascii4": "0018", "ascii4, itself": "0022", "TPDU": "\x00\x12\x60\x00\x01\x00\x00",
		"TPDU, counted": "\x00\x17\x60\x00\x01\x00\x00", "TPDU, itself and counted": "\x00\x19\x60\x00\x01\x00\x00", "ascii4, TPDU, counted": "0023\x60\x00\x01\x00\x00",
		"binary4": "\x00\x00\x00\x12", "binary4, itself": "\x00\x00\x00\x16", "binary4, TPDU, counted": "\x00\x00\x00\x17\x60\x00\x01\x00\x00",
		"bcd2": "\x00\x18", "bcd2, itself": "\x00\x20", "bcd2, TPDU, counted": "\x00\x23\x60\x00\x01\x00\x00",
		"vml": "\x00\x12\x00\x00", "vml, itself": "\x00\x16\x00\x00",
		"TPDU swapped, counted": "\x00\x17\x60\x00\x01\x00\x02", "bcd2, any TPDU": "\x00\x18\x60\x00\x01\x00\x02", "TPDU not swapped": "\x00\x12\x60\x00\x01\x00\x02",
		"varying header": "\x00\x12\x04\x01\x02\x0a", "varying, counted": "\x00\x16\x00\x00\x04\x01\x02\x0a", "varying, all counted": "\x00\x00\x00\x1a\x04\x01\x02\x0a",
	} {
		got, err := builtFraming(t, framings[name]).Append(nil, body)
		if err != nil || string(got) != want+string(body) {
			t.Errorf("%s: %q, want %q in front", name, got, want)
		}
	}
}

// pieces gives the stream in reads that end at the given offsets.
type pieces struct {
	stream []byte
	ends   []int
	at     int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.at == len(p.stream) {
		return 0, io.EOF
	}
	end := len(p.stream)
	for _, e := range p.ends {
		if e > p.at {
			end = e
			break
		}
	}
	n := copy(b, p.stream[p.at:end])
	p.at += n
	return n, nil
}

func TestS73_EverySplitOfAStream(t *testing.T) {
	t.Parallel()
	spec := Spec1987(BitmapBinary)
	bodies := [][]byte{goldenBody(t, "0800_sign_on_binary"), goldenBody(t, "0100_binary"), goldenBody(t, "0110_binary")}
	for name, cfg := range framings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := builtFraming(t, cfg).Diagnosing(spec)
			stream := framed(t, f, bodies...)
			for cut := 1; cut < len(stream); cut++ {
				checkStream(t, f, &pieces{stream: stream, ends: []int{cut}}, bodies)
			}
			for first := 1; first < 40; first++ { // two cuts, around the first frame's end and the second's beginning
				for second := first + 1; second < 60; second++ {
					checkStream(t, f, &pieces{stream: stream, ends: []int{first, second}}, bodies)
				}
			}
			checkStream(t, f, bytes.NewReader(stream), bodies) // all glued
			checkStream(t, f, iotest.OneByteReader(bytes.NewReader(stream)), bodies)
			checkStream(t, f, iotest.DataErrReader(bytes.NewReader(stream)), bodies)
		})
	}
}

func checkStream(t *testing.T, f *Framing, stream io.Reader, bodies [][]byte) {
	t.Helper()
	r := bufio.NewReader(stream)
	var buf []byte
	for i, want := range bodies {
		body, err := f.Read(r, buf)
		if err != nil || !bytes.Equal(body, want) {
			t.Fatalf("message %d: %q, %v", i+1, body, err)
		}
		buf = body
	}
	if _, err := f.Read(r, buf); err != io.EOF {
		t.Fatalf("after the last message: %v", err)
	}
}

func TestFraming_EndOfStreamWithinAFrame(t *testing.T) {
	t.Parallel()
	for name, cfg := range framings {
		f := builtFraming(t, cfg)
		stream := framed(t, f, goldenBody(t, "0110_binary"))
		for cut := 1; cut < len(stream); cut++ {
			_, err := f.Read(bufio.NewReader(bytes.NewReader(stream[:cut])), nil)
			if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
				t.Fatalf("%s, cut at %d: %v", name, cut, err)
			}
		}
	}
	broke := errors.New("connection reset")
	f := builtFraming(t, FramingConfig{})
	for _, reader := range []io.Reader{iotest.ErrReader(broke), io.MultiReader(strings.NewReader("\x00\x12\x30"), iotest.ErrReader(broke))} {
		if _, err := f.Read(bufio.NewReader(reader), nil); !errors.Is(err, broke) {
			t.Errorf("a failing stream: %v", err)
		}
	}
}

// TestJ20_KeepAliveIsSwallowed, number 20 of the real-life inputs: a frame without a message.
func TestJ20_KeepAliveIsSwallowed(t *testing.T) {
	t.Parallel()
	body := goldenBody(t, "0110_binary")
	for name, keepAlive := range map[string]string{
		"binary2": "\x00\x00", "binary2, itself": "\x00\x02", "ascii4": "0000", "ascii4, itself": "0004",
		"TPDU": "\x00\x00", "TPDU, counted": "\x00\x05\x60\x00\x01\x00\x00", "TPDU, itself and counted": "\x00\x07\x60\x00\x01\x00\x00",
		"binary4": "\x00\x00\x00\x00", "binary4, itself": "\x00\x00\x00\x04", "bcd2": "\x00\x00", "bcd2, itself": "\x00\x02",
		"TPDU swapped, counted": "\x00\x05\x60\x00\x02\x00\x01", "bcd2, any TPDU": "\x00\x00", "vml": "\x00\x00\x00\x02", "varying, counted": "\x00\x04\x00\x00\x04\x01\x02\x0a",
	} {
		f := builtFraming(t, framings[name]).Diagnosing(Spec1987(BitmapBinary))
		stream := slices.Concat([]byte(keepAlive), framed(t, f, body), []byte(keepAlive))
		checkStream(t, f, bytes.NewReader(stream), [][]byte{{}, body, {}})
	}
	// Zero, from peers that count the length itself in other frames.
	f := builtFraming(t, framings["binary2, itself"])
	checkStream(t, f, strings.NewReader("\x00\x00\x00\x00"), [][]byte{{}, {}})
}

func TestB13_FramesAreRangeChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []FramingConfig{{}, {Length: LengthASCII4}, {Length: LengthASCII4, MaxBytes: 9999}, {MaxBytes: 65535}, {MinBytes: 12, MaxBytes: 20}} {
		f := builtFraming(t, cfg)
		for _, n := range []int{0, f.minBytes - 1, f.maxBytes + 1, 12345678} {
			if got, err := f.Append([]byte("kept"), make([]byte, n)); err == nil || string(got) != "kept" {
				t.Errorf("%+v: a message of %d bytes is framed", cfg, n)
			}
		}
		for _, n := range []int{f.minBytes, f.maxBytes} {
			body := bytes.Repeat([]byte("x"), n)
			checkStream(t, f, bytes.NewReader(framed(t, f, body)), [][]byte{body})
		}
	}
}

// TestP3_LengthsAreDigitsWithinLimits: signs, letters and sizes that kill other readers, also the lengths of trap B12.
func TestP3_LengthsAreDigitsWithinLimits(t *testing.T) {
	t.Parallel()
	ascii := builtFraming(t, FramingConfig{Length: LengthASCII4})
	for _, length := range []string{"-001", "+012", " 012", "012 ", "0x10", "\x00\x12\x30\x31", "FFFF", "8193", "9999"} {
		refusesFrame(t, ascii, length+strings.Repeat("0", 20), "frame: ")
	}
	binary := builtFraming(t, FramingConfig{})
	for _, length := range []string{"\xff\xff", "\x20\x01", "\x80\x00"} {
		refusesFrame(t, binary, length+strings.Repeat("0", 20), "1 to 8192")
	}
	inclusive := builtFraming(t, FramingConfig{Includes: IncludesLength, MinBytes: 12})
	refusesFrame(t, inclusive, "\x00\x01", `framing.includes is "length"`)
	refusesFrame(t, inclusive, "\x00\x0d", "14 to")
	tpdu := builtFraming(t, FramingConfig{Header: "6000010000"})
	refusesFrame(t, tpdu, "\x00\x12\x60\x00\x01\x00\x01", "framing.header")
}

func refusesFrame(t *testing.T, f *Framing, stream, rule string) {
	t.Helper()
	body, err := f.Read(bufio.NewReader(strings.NewReader(stream)), nil)
	if frame, ok := errors.AsType[*FrameError](err); !ok || !strings.Contains(frame.Error(), rule) || body != nil {
		t.Errorf("%q: %q, %v, want a FrameError about %q", stream, body, err, rule)
	}
}

// TestS79_MemoryIsBoundedByTheFrameLimit: what a peer announces is never more than the limit, and never allocated when it is.
func TestS79_MemoryIsBoundedByTheFrameLimit(t *testing.T) {
	t.Parallel()
	f := builtFraming(t, FramingConfig{MaxBytes: 512})
	for announced := range 1 << 16 {
		body, err := f.Read(bufio.NewReaderSize(bytes.NewReader([]byte{byte(announced >> 8), byte(announced)}), 16), nil)
		_, refused := errors.AsType[*FrameError](err)
		if cap(body) > 1024 || refused != (announced > 512) {
			t.Fatalf("announced %d: %d bytes of buffer, %v", announced, cap(body), err)
		}
	}
}

// wrongIncludes are all pairs of what the peer's lengths count and what the profile says they do.
func wrongIncludes(visit func(name string, peer, ours FramingConfig, delta int)) {
	for _, header := range []string{"", "6000010000"} {
		counted := map[string]int{IncludesNone: 0, IncludesHeader: len(header) / 2, IncludesLength: 2 + len(header)/2}
		for peer := range counted {
			for ours := range counted {
				if delta := counted[peer] - counted[ours]; delta != 0 {
					visit(fmt.Sprintf("peer %s, profile %s, header %q", peer, ours, header),
						FramingConfig{Header: header, Includes: peer}, FramingConfig{Header: header, Includes: ours}, delta)
				}
			}
		}
	}
}

// TestS74_WrongIncludesSettingIsDiagnosed: the error says by how much the length is off and which setting the peer has, instead of waiting
// for bytes that never come.
func TestS74_WrongIncludesSettingIsDiagnosed(t *testing.T) {
	t.Parallel()
	spec, body := Spec1987(BitmapBinary), goldenBody(t, "0810_sign_on_binary")
	wrongIncludes(func(name string, peer, ours FramingConfig, delta int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := framed(t, builtFraming(t, peer), body)
			f := builtFraming(t, ours).Diagnosing(spec)
			want := fmt.Sprintf("off by %d", max(delta, -delta))
			check := func(how string, err error) {
				t.Helper()
				frame, ok := errors.AsType[*FrameError](err)
				if !ok || !strings.Contains(frame.Rule, want) || !strings.Contains(frame.Rule, "framing.includes") {
					t.Errorf("%s: %v, want a FrameError with %q", how, err, want)
				}
			}
			synctest.Test(t, func(t *testing.T) { // a lone frame on an open line
				us, them := net.Pipe()
				defer us.Close()
				defer them.Close()
				go them.Write(stream)
				noError(t, us.SetReadDeadline(time.Now().Add(time.Minute)))
				_, err := f.Read(bufio.NewReader(us), nil)
				check("alone", err)
			})
			_, err := f.Read(bufio.NewReader(bytes.NewReader(slices.Concat(stream, stream))), nil)
			check("glued", err)
		})
	})
}

// TestS74_WithoutKnowledgeOfTheMessages: the bytes alone still show that a length cannot be one.
func TestS74_WithoutKnowledgeOfTheMessages(t *testing.T) {
	t.Parallel()
	// Number 13 of the real-life inputs: four digits of length read as two bytes.
	refusesFrame(t, builtFraming(t, FramingConfig{}), "01360210\x72\x38\x04\x01\x0a\xc0\x00\x08", "framing.length may be ascii4")
	refusesFrame(t, builtFraming(t, FramingConfig{Length: LengthASCII4}), "\x00\x880210", "framing.length")
	// The second frame of a peer whose length counts itself begins two bytes late, in the message type.
	body := goldenBody(t, "0110_binary")
	stream := framed(t, builtFraming(t, FramingConfig{Includes: IncludesLength}), body, body)
	f, r := builtFraming(t, FramingConfig{}), bufio.NewReader(bytes.NewReader(stream))
	_, err := f.Read(r, nil)
	noError(t, err)
	if _, err = f.Read(r, nil); err == nil || !strings.Contains(err.Error(), "framing.includes may be wrong") {
		t.Errorf("%v", err)
	}
}

// TestJ13_IncompleteFrame, number 13 of the real-life inputs: 136 bytes announced, 124 there.
func TestJ13_IncompleteFrame(t *testing.T) {
	t.Parallel()
	f := builtFraming(t, FramingConfig{Length: LengthASCII4}).Diagnosing(Spec1987(BitmapBinary))
	stream := "0136" + "0210" + strings.Repeat("0", 120)
	if _, err := f.Read(bufio.NewReader(strings.NewReader(stream)), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

func TestFramingConfig_FaultsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := FramingConfig{Length: "bcd4", Includes: "tpdu", Header: "6", MaxHeaderBytes: 65,
		TPDU: TPDUConfig{"60", "both"}, MinBytes: -1, MaxBytes: 70000}.Build()
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{"length: ", "includes: ", "header: ", "max_header_bytes: ", "tpdu.request: ", "tpdu.received: ", "min_bytes: ", "max_bytes: "} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("no fault at %q in %v", key, err)
		}
	}
	for _, cfg := range []FramingConfig{{Length: LengthASCII4, MaxBytes: 10000}, {Includes: IncludesLength, MaxBytes: 65534}, {MinBytes: 30, MaxBytes: 20}, {Header: strings.Repeat("00", 65)},
		{Length: LengthBCD2, MaxBytes: 10000}, {Length: LengthVML, Includes: IncludesLength, MaxBytes: 65532}, {Length: LengthBinary4, MaxBytes: 65536},
		{Header: "6000010000", TPDU: TPDUConfig{Request: "6000010000"}}, {MaxHeaderBytes: 26}, {MaxHeaderBytes: -1}, {Header: "0301", MaxHeaderBytes: 26}, {Header: "0301AA", MaxHeaderBytes: 2},
		{Length: LengthBCD2, Header: "03AAAA", MaxHeaderBytes: 26, Includes: IncludesHeader, MaxBytes: 9974}} {
		if _, err := cfg.Build(); err == nil {
			t.Errorf("%+v is built", cfg)
		}
	}
}
