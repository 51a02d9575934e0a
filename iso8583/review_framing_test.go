package iso8583_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/iso8583"
)

const tpdu = "6000120000"

// framings is every way of counting, with and without a header.
func framings(t testing.TB) map[string]iso8583.FramingConfig {
	t.Helper()
	all := map[string]iso8583.FramingConfig{}
	for _, length := range []string{iso8583.LengthBinary2, iso8583.LengthASCII4} {
		for _, includes := range []string{iso8583.IncludesNone, iso8583.IncludesHeader, iso8583.IncludesLength} {
			for _, header := range []string{"", tpdu} {
				if header == "" && includes == iso8583.IncludesHeader {
					continue // the same as none
				}
				name := fmt.Sprintf("%s/%s/header%d", length, includes, len(header)/2)
				all[name] = iso8583.FramingConfig{Length: length, Includes: includes, Header: header}
			}
		}
	}
	return all
}

func buildFraming(t testing.TB, c iso8583.FramingConfig) *iso8583.Framing {
	t.Helper()
	f, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// threeMessages are of different lengths; the first ends in bytes that read as a length, the last in a digit.
func threeMessages(t testing.TB, form iso8583.BitmapForm) [][]byte {
	t.Helper()
	s := iso8583.Spec1987(form)
	return [][]byte{
		encode(t, s, iso8583.MTIAuthorizationRequest, map[int]string{2: "4111111111111111", 3: "000000", 4: "000000001050", 7: "1201094501",
			11: "000123", 37: "633510000123", 41: "TERM0001", 49: "978", 55: "\x9F\x02\x06\x00\x00\x00\x00\x10\x50", 64: "\x00\x10\x00\x00\x00\x04\x00\x08"}),
		encode(t, s, iso8583.MTIReversalAdvice, map[int]string{3: "000000", 4: "000000001050", 7: "1201094535", 11: "000124", 41: "TERM0001",
			90: "010000012312010945010001234567800000000000"}),
		encode(t, s, iso8583.MTINetworkManagementRequest, map[int]string{7: "1201094501", 11: "000001", 70: "301"}),
	}
}

func frames(t testing.TB, f *iso8583.Framing, bodies ...[]byte) []byte {
	t.Helper()
	var stream []byte
	for _, body := range bodies {
		var err error
		if stream, err = f.Append(stream, body); err != nil {
			t.Fatal(err)
		}
	}
	return stream
}

// errStarved stands for a socket on which nothing comes any more: a reader that asks for it would hang.
var errStarved = errors.New("nothing comes any more")

// pieces gives one piece for each Read, as a socket does with what the network delivers, then end.
type pieces struct {
	rest [][]byte
	end  error
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.rest) > 0 && len(p.rest[0]) == 0 {
		p.rest = p.rest[1:]
	}
	if len(p.rest) == 0 {
		return 0, p.end
	}
	n := copy(b, p.rest[0])
	p.rest[0] = p.rest[0][n:]
	return n, nil
}

func split(stream []byte, at ...int) [][]byte {
	var all [][]byte
	from := 0
	for _, to := range append(at, len(stream)) {
		all = append(all, slices.Clone(stream[from:to]))
		from = to
	}
	return all
}

func singleBytes(stream []byte) [][]byte {
	return slices.Collect(slices.Chunk(slices.Clone(stream), 1))
}

// readAll reads until the first error, in one buffer as a link does.
func readAll(f *iso8583.Framing, in [][]byte, end error, buffer int) (bodies [][]byte, err error) {
	r := bufio.NewReaderSize(&pieces{in, end}, buffer)
	var buf []byte
	for {
		body, err := f.Read(r, buf)
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, slices.Clone(body))
		buf = body
	}
}

// TestS73_EverySplitOfThreeMessages cuts a stream of three messages at every point and at every pair of points around its frames'
// borders, delivers it byte by byte and all at once, through a large buffer and the smallest one.
func TestS73_EverySplitOfThreeMessages(t *testing.T) {
	t.Parallel()
	for name, config := range framings(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, form := range bothForms {
				plain := buildFraming(t, config)
				want := threeMessages(t, form)
				stream := frames(t, plain, want...)
				deliveries := [][][]byte{{slices.Clone(stream)}, singleBytes(stream)}
				for at := range len(stream) {
					deliveries = append(deliveries, split(stream, at))
					if at+3 <= len(stream) {
						deliveries = append(deliveries, split(stream, at, at+3))
					}
				}
				for _, framing := range []*iso8583.Framing{plain, plain.Diagnosing(iso8583.Spec1987(form))} {
					for i, delivery := range deliveries {
						for _, buffer := range []int{4096, 64} {
							in := make([][]byte, len(delivery))
							copy(in, delivery)
							got, err := readAll(framing, in, io.EOF, buffer)
							if !errors.Is(err, io.EOF) || !slices.EqualFunc(got, want, bytes.Equal) {
								t.Fatalf("delivery %d, buffer %d: %d messages, %v", i, buffer, len(got), err)
							}
						}
					}
				}
			}
		})
	}
}

// TestFraming_GoldenFrames has the frames of one message written down by hand.
func TestFraming_GoldenFrames(t *testing.T) {
	t.Parallel()
	body := "30383030" + "2220000000800000" + "313230313039343530313030303030313339" // 30 bytes; only framing looks at them
	for name, test := range map[string]struct {
		config iso8583.FramingConfig
		prefix string
	}{
		"binary2":                        {iso8583.FramingConfig{}, "001E"},
		"binary2, counts itself":         {iso8583.FramingConfig{Includes: "length"}, "0020"},
		"binary2, header":                {iso8583.FramingConfig{Header: tpdu}, "001E" + tpdu},
		"binary2, counts header":         {iso8583.FramingConfig{Header: tpdu, Includes: "header"}, "0023" + tpdu},
		"binary2, counts all":            {iso8583.FramingConfig{Header: tpdu, Includes: "length"}, "0025" + tpdu},
		"ascii4":                         {iso8583.FramingConfig{Length: "ascii4"}, "30303330"},
		"ascii4, counts itself":          {iso8583.FramingConfig{Length: "ascii4", Includes: "length"}, "30303334"},
		"ascii4, counts header":          {iso8583.FramingConfig{Length: "ascii4", Header: tpdu, Includes: "header"}, "30303335" + tpdu},
		"ascii4, counts all":             {iso8583.FramingConfig{Length: "ascii4", Header: tpdu, Includes: "length"}, "30303339" + tpdu},
		"ascii4, literal text as header": {iso8583.FramingConfig{Length: "ascii4", Header: hex.EncodeToString([]byte("ISO"))}, "30303330" + "49534F"},
	} {
		message, _ := hex.DecodeString(body)
		want, _ := hex.DecodeString(test.prefix + body)
		f := buildFraming(t, test.config)
		if got := frames(t, f, message); !bytes.Equal(got, want) {
			t.Errorf("%s: %X, want %X", name, got, want)
		}
		got, err := readAll(f, [][]byte{want}, io.EOF, 4096)
		if !errors.Is(err, io.EOF) || len(got) != 1 || !bytes.Equal(got[0], message) {
			t.Errorf("%s: reads %X, %v", name, got, err)
		}
	}
}

// TestS74_WrongIncludesIsDiagnosed lets a peer count in every way that the profile does not say. Whatever arrives together with the first
// message must be enough to say by how much the length is off, also when nothing follows.
func TestS74_WrongIncludesIsDiagnosed(t *testing.T) {
	t.Parallel()
	for ourName, ours := range framings(t) {
		for theirName, theirs := range framings(t) {
			if ours.Length != theirs.Length || ours.Header != theirs.Header || ours.Includes == theirs.Includes {
				continue
			}
			t.Run(strings.ReplaceAll(ourName+"_but_"+theirName, "/", "_"), func(t *testing.T) {
				t.Parallel()
				for _, form := range bothForms {
					messages := threeMessages(t, form)
					framing := buildFraming(t, ours).Diagnosing(iso8583.Spec1987(form))
					peer := buildFraming(t, theirs)
					off := counted(theirs) - counted(ours)
					for i, message := range messages {
						one := frames(t, peer, message)
						for delivery, in := range map[string][][]byte{
							"alone":             {one},
							"with the next one": {frames(t, peer, message, messages[(i+1)%len(messages)])},
							"header first":      split(one, len(one)-len(message)),
						} {
							got, err := readAll(framing, in, errStarved, 4096)
							wantDiagnosis(t, fmt.Sprintf("message %d, %s", i, delivery), got, err, off, theirs.Includes)
						}
						if off < 0 {
							continue // what is missing of a message read too short must have arrived with it to be seen
						}
						for at := range len(one) {
							got, err := readAll(framing, split(one, at), errStarved, 4096)
							wantDiagnosis(t, fmt.Sprintf("message %d, split at %d", i, at), got, err, off, theirs.Includes)
						}
						got, err := readAll(framing, singleBytes(one), errStarved, 4096)
						wantDiagnosis(t, fmt.Sprintf("message %d, byte by byte", i), got, err, off, theirs.Includes)
					}
				}
			})
		}
	}
}

// counted is what the length counts besides the message, by the words of the profile.
func counted(c iso8583.FramingConfig) int {
	size := map[string]int{iso8583.LengthBinary2: 2, iso8583.LengthASCII4: 4}[c.Length]
	switch c.Includes {
	case iso8583.IncludesHeader:
		return len(c.Header) / 2
	case iso8583.IncludesLength:
		return size + len(c.Header)/2
	}
	return 0
}

func wantDiagnosis(t *testing.T, what string, bodies [][]byte, err error, off int, includes string) {
	t.Helper()
	frame, ok := errors.AsType[*iso8583.FrameError](err)
	want := fmt.Sprintf("off by %d", max(off, -off))
	if !ok || len(bodies) > 0 || !strings.Contains(frame.Rule, want) || !strings.Contains(frame.Rule, `"`+includes+`"`) {
		t.Errorf("%s: %d messages, then %v; want a diagnosis with %q and %q", what, len(bodies), err, want, includes)
	}
}

// TestS74_TooShortInPiecesNeverBecomesAMessage: a length read as too short cannot always be proved wrong when the rest comes late, but
// the broken message must not pass for a whole one, and the next frame must not be taken for a good one.
func TestS74_TooShortInPiecesNeverBecomesAMessage(t *testing.T) {
	t.Parallel()
	for ourName, ours := range framings(t) {
		theirs := ours
		if theirs.Includes = iso8583.IncludesNone; ours.Includes == theirs.Includes {
			continue
		}
		t.Run(strings.ReplaceAll(ourName, "/", "_"), func(t *testing.T) {
			t.Parallel()
			for _, form := range bothForms {
				spec := iso8583.Spec1987(form)
				framing := buildFraming(t, ours).Diagnosing(spec)
				stream := frames(t, buildFraming(t, theirs), threeMessages(t, form)...)
				for at := range len(stream) + 1 {
					in := singleBytes(stream)
					if at < len(stream) {
						in = split(stream, at)
					}
					bodies, err := readAll(framing, in, io.EOF, 4096)
					if err == nil || errors.Is(err, io.EOF) && len(bodies) == 0 {
						t.Fatalf("split at %d: %d bodies, %v", at, len(bodies), err)
					}
					for _, body := range bodies {
						if _, err := spec.Decode(body); err == nil {
							t.Fatalf("split at %d: a message came out of a stream of another framing", at)
						}
					}
				}
			}
		})
	}
}

// TestS74_AnotherLengthFormIsDiagnosed: digits where two bytes are expected and the other way round.
func TestS74_AnotherLengthFormIsDiagnosed(t *testing.T) {
	t.Parallel()
	binary, ascii := buildFraming(t, iso8583.FramingConfig{}), buildFraming(t, iso8583.FramingConfig{Length: iso8583.LengthASCII4})
	message := threeMessages(t, iso8583.BitmapBinary)[0]
	for name, test := range map[string]struct {
		ours   *iso8583.Framing
		theirs *iso8583.Framing
		hint   string
	}{
		"digits for binary": {binary, ascii, "framing.length may be ascii4"},
		"binary for digits": {ascii, binary, "framing.length"},
	} {
		bodies, err := readAll(test.ours, [][]byte{frames(t, test.theirs, message)}, errStarved, 4096)
		frame, ok := errors.AsType[*iso8583.FrameError](err)
		if !ok || len(bodies) > 0 || !strings.Contains(frame.Rule, test.hint) {
			t.Errorf("%s: %v, want a hint %q", name, err, test.hint)
		}
	}
}

// TestS74_HeaderUnexpectedOrMissing: a TPDU that the profile does not name becomes a refused message, one that is missing a framing error.
func TestS74_HeaderUnexpectedOrMissing(t *testing.T) {
	t.Parallel()
	message := threeMessages(t, iso8583.BitmapBinary)[2]
	with, without := buildFraming(t, iso8583.FramingConfig{Header: tpdu}), buildFraming(t, iso8583.FramingConfig{})
	counting := buildFraming(t, iso8583.FramingConfig{Header: tpdu, Includes: iso8583.IncludesHeader})
	if _, err := readAll(with, [][]byte{frames(t, without, message)}, errStarved, 4096); !strings.Contains(fmt.Sprint(err), "framing.header") {
		t.Errorf("missing header: %v", err)
	}
	bodies, err := readAll(without, [][]byte{frames(t, counting, message)}, io.EOF, 4096)
	if !errors.Is(err, io.EOF) || len(bodies) != 1 {
		t.Fatalf("unexpected header: %d bodies, %v", len(bodies), err)
	}
	if _, err := iso8583.Spec1987(iso8583.BitmapBinary).Decode(bodies[0]); err == nil {
		t.Error("a message with a header in front is taken")
	}
}

// TestJ17_MalformedMessageKeepsTheLine: a message that its frame holds whole but that does not decode is no framing error, so the next
// one is read as if nothing had happened.
func TestJ17_MalformedMessageKeepsTheLine(t *testing.T) {
	t.Parallel()
	spec := iso8583.Spec1987(iso8583.BitmapBinary)
	good := threeMessages(t, iso8583.BitmapBinary)[0]
	spoiled := func(spoil func([]byte) []byte) []byte { return spoil(slices.Clone(good)) }
	for name, bad := range map[string][]byte{
		"one byte":          {'0'},
		"type only":         []byte("0100"),
		"type of letters":   spoiled(func(b []byte) []byte { copy(b, "zzzz"); return b }),
		"one byte too many": spoiled(func(b []byte) []byte { return append(b, 'X') }),
		"one byte missing":  spoiled(func(b []byte) []byte { return b[:len(b)-1] }),
		"a length of signs": spoiled(func(b []byte) []byte { copy(b[12:], "+6"); return b }),
		"an unknown bit":    spoiled(func(b []byte) []byte { b[4] |= 0x80; return b }),
	} {
		for config, c := range framings(t) {
			framing := buildFraming(t, c).Diagnosing(spec)
			bodies, err := readAll(framing, [][]byte{frames(t, framing, bad, good)}, io.EOF, 4096)
			if !errors.Is(err, io.EOF) || len(bodies) != 2 || !bytes.Equal(bodies[1], good) {
				t.Errorf("%s, %s: %d bodies, %v", config, name, len(bodies), err)
				continue
			}
			if _, err := spec.Decode(bodies[0]); err == nil {
				t.Errorf("%s: decodes", name)
			}
		}
	}
}

// TestS79_EveryCutOfAFrameIsAnError: the stream ends cleanly between frames only.
func TestS79_EveryCutOfAFrameIsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range framings(t) {
		framing := buildFraming(t, c).Diagnosing(iso8583.Spec1987(iso8583.BitmapBinary))
		stream := frames(t, framing, threeMessages(t, iso8583.BitmapBinary)[1])
		for n := 1; n < len(stream); n++ {
			if bodies, err := readAll(framing, [][]byte{slices.Clone(stream[:n])}, io.EOF, 4096); len(bodies) > 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s, cut at %d: %d bodies, %v", name, n, len(bodies), err)
			}
		}
		if _, err := readAll(framing, nil, io.EOF, 4096); err != io.EOF {
			t.Errorf("%s: an empty stream ends with %v", name, err)
		}
		if _, err := readAll(framing, [][]byte{slices.Clone(stream[:5])}, errStarved, 4096); !errors.Is(err, errStarved) {
			t.Errorf("%s: a failing socket ends with %v", name, err)
		}
	}
}

// TestS79_LengthsOutOfBounds: signs, letters and sizes beyond the profile's, with no byte of a body behind them; nothing may be asked for.
func TestS79_LengthsOutOfBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config iso8583.FramingConfig
		wire   string
	}{
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, "-001"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, "+012"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, " 012"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, "00A0"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, "00\x000"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4}, "\xB0\xB0\xB1\xB2"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4, MaxBytes: 512}, "0513"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4, MinBytes: 20}, "0019"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4, Includes: iso8583.IncludesLength}, "0003"},
		{iso8583.FramingConfig{Length: iso8583.LengthASCII4, Header: tpdu, Includes: iso8583.IncludesHeader}, "0004"},
		{iso8583.FramingConfig{}, "\xFF\xFF"},
		{iso8583.FramingConfig{}, "\x20\x01"},
		{iso8583.FramingConfig{Includes: iso8583.IncludesLength}, "\x00\x01"},
		{iso8583.FramingConfig{MinBytes: 20}, "\x00\x13"},
	} {
		framing := buildFraming(t, test.config)
		bodies, err := readAll(framing, [][]byte{[]byte(test.wire)}, errStarved, 4096)
		if _, ok := errors.AsType[*iso8583.FrameError](err); !ok || len(bodies) > 0 {
			t.Errorf("%+v: %q gives %d bodies, %v", test.config, test.wire, len(bodies), err)
		}
	}
}

// TestS79_MemoryIsBoundedByTheLimit: a peer that announces the most and sends nothing, or sends endlessly, holds one frame's memory.
func TestS79_MemoryIsBoundedByTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 600
	framing := buildFraming(t, iso8583.FramingConfig{MaxBytes: limit})
	var stream []byte
	for range 200 {
		stream = append(stream, frames(t, framing, bytes.Repeat([]byte("x"), limit))...)
	}
	r := bufio.NewReaderSize(&pieces{split(stream), io.EOF}, 256)
	var buf []byte
	for n := 0; ; n++ {
		body, err := framing.Read(r, buf)
		if errors.Is(err, io.EOF) {
			if n != 200 {
				t.Errorf("%d frames", n)
			}
			return
		}
		if err != nil || len(body) != limit || cap(body) > 2*limit {
			t.Fatalf("frame %d: %d bytes in %d, %v", n, len(body), cap(body), err)
		}
		if n > 0 && &body[0] != &buf[:1][0] {
			t.Fatalf("frame %d: a buffer that is large enough is not used again", n)
		}
		buf = body
	}
}

// TestB13_FramesAreNeverWrittenOutOfRange: what the length field cannot say or the profile does not allow is refused, and nothing is added.
func TestB13_FramesAreNeverWrittenOutOfRange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config iso8583.FramingConfig
		bad    []int
		good   int
	}{
		"ascii4":         {iso8583.FramingConfig{Length: iso8583.LengthASCII4, MaxBytes: 9999}, []int{0, 10000, 12345}, 9999},
		"ascii4, itself": {iso8583.FramingConfig{Length: iso8583.LengthASCII4, MaxBytes: 9995, Includes: iso8583.IncludesLength}, []int{0, 9996, 9999}, 9995},
		"binary2":        {iso8583.FramingConfig{MaxBytes: 65535}, []int{0, 65536, 70000}, 65535},
		"default":        {iso8583.FramingConfig{}, []int{0, 8193}, 8192},
		"least":          {iso8583.FramingConfig{MinBytes: 12}, []int{0, 11}, 12},
	} {
		framing := buildFraming(t, test.config)
		for _, n := range test.bad {
			if got, err := framing.Append([]byte("kept"), make([]byte, n)); err == nil || string(got) != "kept" {
				t.Errorf("%s: %d bytes give %d, %v", name, n, len(got), err)
			}
		}
		stream := frames(t, framing, bytes.Repeat([]byte("7"), test.good))
		if bodies, err := readAll(framing, [][]byte{stream}, io.EOF, 4096); !errors.Is(err, io.EOF) || len(bodies) != 1 || len(bodies[0]) != test.good {
			t.Errorf("%s: the greatest frame does not come back: %v", name, err)
		}
	}
}

// TestJ20_KeepAliveIsAnEmptyMessage: a frame without a message, by itself, between frames, split, and with a header.
func TestJ20_KeepAliveIsAnEmptyMessage(t *testing.T) {
	t.Parallel()
	message := threeMessages(t, iso8583.BitmapBinary)[2]
	for name, test := range map[string]struct {
		config    iso8583.FramingConfig
		keepAlive string
	}{
		"binary2":                   {iso8583.FramingConfig{}, "\x00\x00"},
		"binary2, itself":           {iso8583.FramingConfig{Includes: iso8583.IncludesLength}, "\x00\x02"},
		"binary2, itself, zero":     {iso8583.FramingConfig{Includes: iso8583.IncludesLength}, "\x00\x00"},
		"ascii4":                    {iso8583.FramingConfig{Length: iso8583.LengthASCII4, MinBytes: 12}, "0000"},
		"ascii4, itself":            {iso8583.FramingConfig{Length: iso8583.LengthASCII4, Includes: iso8583.IncludesLength}, "0004"},
		"ascii4, header, no header": {iso8583.FramingConfig{Length: iso8583.LengthASCII4, Header: tpdu}, "0000"},
		"ascii4, counted header":    {iso8583.FramingConfig{Length: iso8583.LengthASCII4, Header: tpdu, Includes: iso8583.IncludesHeader}, "0005\x60\x00\x12\x00\x00"},
	} {
		framing := buildFraming(t, test.config).Diagnosing(iso8583.Spec1987(iso8583.BitmapBinary))
		one := frames(t, framing, message)
		stream := slices.Concat([]byte(test.keepAlive), one, []byte(test.keepAlive), []byte(test.keepAlive), one)
		for _, in := range [][][]byte{{slices.Clone(stream)}, singleBytes(stream)} {
			bodies, err := readAll(framing, in, io.EOF, 4096)
			want := [][]byte{{}, message, {}, {}, message}
			if !errors.Is(err, io.EOF) || !slices.EqualFunc(bodies, want, bytes.Equal) {
				t.Errorf("%s: %d bodies, %v", name, len(bodies), err)
			}
		}
	}
}

// TestFraming_FaultsTogether: all wrong settings are named in one error.
func TestFraming_FaultsTogether(t *testing.T) {
	t.Parallel()
	_, err := iso8583.FramingConfig{Length: "bcd2", Includes: "tpdu", Header: "6", MinBytes: -1, MaxBytes: 70000}.Build()
	for _, want := range []string{"length:", "includes:", "header:", "min_bytes:", "max_bytes:"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want a fault at %s", err, want)
		}
	}
	for name, c := range map[string]iso8583.FramingConfig{
		"more than 4 digits can say": {Length: iso8583.LengthASCII4, MaxBytes: 10000},
		"with itself counted":        {Length: iso8583.LengthASCII4, Includes: iso8583.IncludesLength, MaxBytes: 9996},
		"least above most":           {MinBytes: 100, MaxBytes: 99},
		"header too long":            {Header: strings.Repeat("00", 65)},
		"negative":                   {MaxBytes: -1},
	} {
		if _, err := c.Build(); err == nil {
			t.Errorf("%s: no fault", name)
		}
	}
}
