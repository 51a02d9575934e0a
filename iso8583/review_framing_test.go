package iso8583_test

import (
	"bufio"
	"bytes"
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
	for _, length := range []string{iso8583.LengthBinary2, iso8583.LengthBinary4, iso8583.LengthASCII4, iso8583.LengthBCD2, iso8583.LengthVML} {
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
	size := map[string]int{iso8583.LengthBinary2: 2, iso8583.LengthBinary4: 4, iso8583.LengthASCII4: 4, iso8583.LengthBCD2: 2, iso8583.LengthVML: 4}[c.Length]
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

// TestS79_OneBufferIsUsedAgain: a peer that sends without end holds one frame's memory.
func TestS79_OneBufferIsUsedAgain(t *testing.T) {
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
