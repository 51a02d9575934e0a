package iso8583

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moov-io/iso8583/network"
)

// capture is one file of testdata/framing: frames that were written down by hand, for each way to tell messages apart.
type capture struct {
	cfg              FramingConfig
	body, write      []byte
	reads, keepAlive [][]byte
}

func readCapture(t *testing.T, file string) (c capture) {
	t.Helper()
	text, err := os.ReadFile(file)
	noError(t, err)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "#":
		case "length":
			c.cfg.Length = value
		case "includes":
			c.cfg.Includes = value
		case "header":
			c.cfg.Header = value
		case "max_header_bytes":
			c.cfg.MaxHeaderBytes, err = strconv.Atoi(value)
			noError(t, err)
		case "tpdu":
			c.cfg.TPDU.Request, c.cfg.TPDU.Received, _ = strings.Cut(value, " ")
		case "body":
			c.body = fromHex(t, value)
		case "write":
			c.write = fromHex(t, value)
		case "read":
			c.reads = append(c.reads, fromHex(t, value))
		case "keep-alive":
			c.keepAlive = append(c.keepAlive, fromHex(t, value))
		default:
			t.Fatalf("%s: %q", file, line)
		}
	}
	return c
}

// TestS75_GoldenCaptures writes and reads frames of every form, alone, glued and with keep-alives between them, and as the other side.
func TestS75_GoldenCaptures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/framing/*.txt")
	if err != nil || len(files) < len(lengthForms) {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	spec := Spec1987(BitmapBinary)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			c := readCapture(t, file)
			f := builtFraming(t, c.cfg)
			frame, err := f.Append(nil, c.body)
			if err != nil || !bytes.Equal(frame, c.write) {
				t.Errorf("written\n%x, %v, want\n%x", frame, err, c.write)
			}
			var stream []byte
			var want [][]byte
			for _, read := range c.reads {
				for _, keepAlive := range c.keepAlive {
					stream, want = append(stream, keepAlive...), append(want, nil)
				}
				stream, want = append(stream, read...), append(want, c.body)
			}
			for cut := 1; cut < len(stream); cut++ {
				checkStream(t, f, &pieces{stream: stream, ends: []int{cut}}, want)
				checkStream(t, f.Diagnosing(spec), &pieces{stream: stream, ends: []int{cut}}, want)
			}
			if c.cfg.MaxHeaderBytes == 0 {
				checkStream(t, f.Peer(), bytes.NewReader(c.write), [][]byte{c.body})
				answer, err := f.Peer().Append(nil, c.body)
				if err != nil || !bytes.Equal(answer, c.reads[0]) {
					t.Errorf("the other side writes\n%x, %v, want\n%x", answer, err, c.reads[0])
				}
			}
		})
	}
}

// TestS75_TPDUOfTheAnswer: an answer carries the addresses of what it answers, exchanged, whoever sent it.
func TestS75_TPDUOfTheAnswer(t *testing.T) {
	t.Parallel()
	body := goldenBody(t, "0810_sign_on_binary")
	for received, answered := range map[string]string{TPDUSwapped: "6000020001", TPDUAny: "6000020001", TPDUSame: "6000010002"} {
		cfg := FramingConfig{TPDU: TPDUConfig{Request: "6000010002", Received: received}}
		ours := builtFraming(t, cfg)
		theirs := ours.Peer()
		request, err := ours.Append(nil, body)
		noError(t, err)
		got, header, err := theirs.ReadWithHeader(bufio.NewReader(bytes.NewReader(request)), nil, make([]byte, 0, tpduBytes))
		if err != nil || !bytes.Equal(got, body) || !bytes.Equal(header, fromHex(t, "6000010002")) {
			t.Fatalf("%s: header %x, %v", received, header, err)
		}
		answer, err := theirs.AppendReply(nil, got, header)
		noError(t, err)
		if !bytes.Equal(answer[2:7], fromHex(t, answered)) {
			t.Errorf("%s: the answer's TPDU is %x, want %s", received, answer[2:7], answered)
		}
		checkStream(t, ours, bytes.NewReader(answer), [][]byte{body})
		if _, err := theirs.AppendReply(nil, body, header[:4]); err == nil {
			t.Errorf("%s: an answer to a header of 4 bytes", received)
		}
	}
	// A host behind several concentrators answers each by its own address.
	host := builtFraming(t, FramingConfig{TPDU: TPDUConfig{Request: "6000010002", Received: TPDUAny}}).Peer()
	answer, err := host.AppendReply(nil, body, fromHex(t, "6000017777"))
	if err != nil || !bytes.Equal(answer[2:7], fromHex(t, "6077770001")) {
		t.Errorf("%x, %v", answer, err)
	}
	// Without a TPDU a reply is a frame like others.
	plain := builtFraming(t, FramingConfig{Header: "AABB"})
	answer, err = plain.AppendReply(nil, body, nil)
	if err != nil || !bytes.Equal(answer[2:4], []byte{0xAA, 0xBB}) {
		t.Errorf("%x, %v", answer, err)
	}
}

func TestS75_TPDUThatIsNotTheProfiles(t *testing.T) {
	t.Parallel()
	f := builtFraming(t, FramingConfig{TPDU: TPDUConfig{Request: "6000010002"}})
	refusesFrame(t, f, "\x00\x12\x60\x00\x01\x00\x02"+strings.Repeat("0", 18), "framing.tpdu.received")
	refusesFrame(t, f, "\x00\x12\x60\x00\x03\x00\x01"+strings.Repeat("0", 18), "framing.tpdu")
	same := builtFraming(t, FramingConfig{TPDU: TPDUConfig{Request: "6000010002", Received: TPDUSame}})
	refusesFrame(t, same, "\x00\x12\x60\x00\x02\x00\x01"+strings.Repeat("0", 18), "the other way round")
}

// TestJ14_SessionControlNotice, number 14 of the real-life inputs: four bytes of header, length zero. It is a keep-alive: counted by who
// reads it, never answered, and the frames after it are in step.
func TestJ14_SessionControlNotice(t *testing.T) {
	t.Parallel()
	body := goldenBody(t, "0110_binary")
	f := builtFraming(t, FramingConfig{Length: LengthVML})
	stream := slices.Concat(fromHex(t, "00000002"), framed(t, f, body), fromHex(t, "00003132"), framed(t, f, body))
	checkStream(t, f, bytes.NewReader(stream), [][]byte{{}, body, {}, body})
	varying := builtFraming(t, FramingConfig{Header: "0400AAAA", MaxHeaderBytes: 26, Includes: IncludesHeader})
	got, header, err := varying.ReadWithHeader(bufio.NewReader(bytes.NewReader(fromHex(t, "0003 03BBCC"))), nil, nil)
	if err != nil || len(got) != 0 || !bytes.Equal(header, fromHex(t, "03BBCC")) {
		t.Errorf("a header alone: %q, %x, %v", got, header, err)
	}
}

func TestFraming_VaryingHeader(t *testing.T) {
	t.Parallel()
	f := builtFraming(t, FramingConfig{Header: "0201", MaxHeaderBytes: 4})
	refusesFrame(t, f, "\x00\x12\x00"+strings.Repeat("0", 30), "framing.max_header_bytes")
	refusesFrame(t, f, "\x00\x12\x05"+strings.Repeat("0", 30), "framing.max_header_bytes")
	refusesFrame(t, f, "\xff\xff", "1 to 8192") // refused before its header comes
	counted := builtFraming(t, FramingConfig{Header: "0201", MaxHeaderBytes: 4, Includes: IncludesHeader})
	refusesFrame(t, counted, "\x00\x02\x03", "so it counts at least 3")
	for size := 1; size <= 4; size++ {
		header := append([]byte{byte(size)}, bytes.Repeat([]byte("h"), size-1)...)
		checkStream(t, f, bytes.NewReader(slices.Concat([]byte("\x00\x02"), header, []byte("ab"))), [][]byte{[]byte("ab")})
	}
}

// TestB13_LengthsThatDoNotFitAreRefused: in every form a message that is longer than its length can say is an error and no frame.
func TestB13_LengthsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for i := range lengthForms {
		form := &lengthForms[i]
		most := min(form.most, maxBodyBytes)
		f := builtFraming(t, FramingConfig{Length: form.name, MaxBytes: most})
		for _, n := range []int{0, most + 1, most + 12345} {
			if frame, err := f.Append([]byte("x"), make([]byte, n)); err == nil || string(frame) != "x" {
				t.Errorf("%s: a message of %d bytes becomes a frame of %d", form.name, n, len(frame))
			}
		}
		frame, err := f.Append(nil, make([]byte, most))
		if err != nil || len(frame) != form.size+most {
			t.Errorf("%s: the longest message: %d bytes, %v", form.name, len(frame), err)
		}
		checkStream(t, f, bytes.NewReader(frame), [][]byte{make([]byte, most)})
	}
}

// TestB12_LengthsAreDigitsInEveryForm: every length that can be written is read as the same, and no byte that is no digit passes for one.
func TestB12_LengthsAreDigitsInEveryForm(t *testing.T) {
	t.Parallel()
	for i := range lengthForms {
		form := &lengthForms[i]
		for n := 0; n <= min(form.most, maxBodyBytes); n++ {
			field := form.append(nil, n)
			if got, ok := form.read(field); !ok || got != n || len(field) != form.size {
				t.Fatalf("%s: %d is written %x and read as %d, %v", form.name, n, field, got, ok)
			}
		}
	}
	bcd := lengthFormOf(LengthBCD2)
	for n := range 1 << 16 {
		field := binary.BigEndian.AppendUint16(nil, uint16(n))
		want, err := strconv.Atoi(fmt.Sprintf("%x", field))
		if got, ok := bcd.read(field); ok != (err == nil) || ok && got != want {
			t.Fatalf("%x is read as %d, %v", field, got, ok)
		}
	}
	for _, length := range []string{"+012", "-001", " 012", "012 ", "0-12", "\x00012"} {
		if _, ok := lengthFormOf(LengthASCII4).read([]byte(length)); ok {
			t.Errorf("%q is a length", length)
		}
	}
}

// TestP3_NothingIsAllocatedForAnImpossibleLength: in every form, whatever is announced.
func TestP3_NothingIsAllocatedForAnImpossibleLength(t *testing.T) {
	t.Parallel()
	for name, cfg := range framings {
		cfg.MaxBytes = 512
		f := builtFraming(t, cfg)
		counted := f.counted(f.includes, max(len(f.write), f.maxHeader))
		for _, announced := range []int{513 + counted, 8192, most4Digits, mostBinary2, 1 << 24, math.MaxInt32} {
			if announced > f.form.most {
				continue
			}
			stream := append(f.form.append(nil, announced), f.Peer().write...)
			body, err := f.Read(bufio.NewReader(bytes.NewReader(stream)), nil)
			if frame, ok := errors.AsType[*FrameError](err); !ok || cap(body) > 0 || !strings.Contains(frame.Rule, "the length says") {
				t.Errorf("%s, announced %d: %d bytes of buffer, %v", name, announced, cap(body), err)
			}
		}
	}
	refusesFrame(t, builtFraming(t, FramingConfig{Length: LengthBinary4}), "\xff\xff\xff\xff", "the length says 2147483647")
	refusesFrame(t, builtFraming(t, FramingConfig{Length: LengthBCD2}), "\x00\x1A", "framing.length may be binary2")
	refusesFrame(t, builtFraming(t, FramingConfig{Length: LengthBCD2}), "\x99\x99", "1 to 8192")
}

func TestReceivedWithoutATPDUIsRefused(t *testing.T) {
	t.Parallel()
	for _, received := range []string{TPDUSame, TPDUAny} {
		_, err := FramingConfig{TPDU: TPDUConfig{Received: received}}.Build()
		if err == nil || !strings.Contains(err.Error(), "tpdu.received: ") {
			t.Errorf("%s without a request: %v", received, err)
		}
	}
}

// TestS74_WrongIncludesIsDiagnosedInEveryForm: also with a TPDU that is exchanged and with headers that vary.
func TestS74_WrongIncludesIsDiagnosedInEveryForm(t *testing.T) {
	t.Parallel()
	spec, body := Spec1987(BitmapBinary), goldenBody(t, "0810_sign_on_binary")
	headers := map[string]FramingConfig{"TPDU": {TPDU: TPDUConfig{Request: "6000010002"}}, "varying": {Header: "0401020A", MaxHeaderBytes: 26}}
	for i := range lengthForms {
		for headerName, cfg := range headers {
			cfg.Length = lengthForms[i].name
			for _, peer := range allIncludes {
				for _, ours := range allIncludes {
					theirs := cfg
					theirs.Includes, cfg.Includes = peer, ours
					sender, f := builtFraming(t, theirs), builtFraming(t, cfg).Diagnosing(spec)
					header := len(sender.write)
					delta := sender.counted(peer, header) - f.counted(ours, header)
					if delta == 0 {
						continue
					}
					name := fmt.Sprintf("%s, %s, peer %s, profile %s", cfg.Length, headerName, peer, ours)
					stream := framed(t, sender, body)
					for how, in := range map[string]io.Reader{
						"glued": bytes.NewReader(slices.Concat(stream, stream)), "alone": io.MultiReader(bytes.NewReader(stream), hangs{t, name}),
					} {
						_, err := f.Read(bufio.NewReader(in), nil)
						frame, ok := errors.AsType[*FrameError](err)
						if !ok || !strings.Contains(frame.Rule, fmt.Sprintf("off by %d", max(delta, -delta))) || !strings.Contains(frame.Rule, strconv.Quote(peer)) {
							t.Errorf("%s, %s: %v", name, how, err)
						}
					}
				}
			}
		}
	}
}

// hangs stands for a line on which nothing more comes: whoever reads it would wait for ever.
type hangs struct {
	t    *testing.T
	name string
}

func (h hangs) Read([]byte) (int, error) {
	h.t.Errorf("%s: waits for bytes that never come", h.name)
	return 0, io.EOF
}

// TestS74_AnotherLengthFormIsNamed: packed digits and binary numbers look alike, so the messages have to tell.
func TestS74_AnotherLengthFormIsNamed(t *testing.T) {
	t.Parallel()
	spec := Spec1987(BitmapBinary)
	for _, test := range []struct{ ours, theirs, hint string }{
		{LengthBinary2, LengthBCD2, `under framing.length "binary2"; the peer's is "bcd2"`},
		{LengthBCD2, LengthBinary2, "binary2"},
		{LengthBinary4, LengthBinary2, "framing.length may be binary2"},
		{LengthBinary4, LengthBCD2, "framing.length may be binary2 or bcd2"},
		{LengthBinary4, LengthVML, "framing.length may be vml"},
		{LengthBinary4, LengthASCII4, "framing.length may be ascii4"},
		{LengthVML, LengthBinary2, "framing.length may be binary2"},
		{LengthVML, LengthASCII4, "framing.length may be binary2 or ascii4"},
		{LengthBCD2, LengthASCII4, "framing.length"},
		{LengthASCII4, LengthBinary4, "framing.length"},
	} {
		for _, name := range []string{"0800_sign_on_binary", "0100_binary", "0110_binary"} {
			stream := framed(t, builtFraming(t, FramingConfig{Length: test.theirs}), goldenBody(t, name))
			f := builtFraming(t, FramingConfig{Length: test.ours}).Diagnosing(spec)
			synctest.Test(t, func(t *testing.T) { // a lone frame on an open line
				us, them := net.Pipe()
				defer us.Close()
				defer them.Close()
				go them.Write(stream)
				noError(t, us.SetReadDeadline(time.Now().Add(time.Minute)))
				_, err := f.Read(bufio.NewReader(us), nil)
				frame, ok := errors.AsType[*FrameError](err)
				if !ok || !strings.Contains(frame.Rule, test.hint) {
					t.Errorf("%s read as %s, %s: %v", test.theirs, test.ours, name, err)
				}
			})
		}
	}
}

// FuzzFrameForms reads hostile streams in every form. What comes out must be framed again as something that was there, within the limits.
func FuzzFrameForms(f *testing.F) {
	spec := Spec1987(BitmapBinary)
	var all []*Framing
	for _, name := range slices.Sorted(maps.Keys(framings)) {
		cfg := framings[name]
		cfg.MaxBytes = 1024
		framing := builtFraming(f, cfg)
		all = append(all, framing.Diagnosing(spec))
		f.Add(uint8(len(all)-1), framed(f, framing, goldenBody(f, "0800_sign_on_binary"), goldenBody(f, "0110_binary")))
	}
	for i := range all {
		for _, stream := range []string{"\x00\x00", "-001", "+012", "\xff\xff\xff\xff", "\x00\x00\x00\x02", "\x00\x1a", "0136" + "0210", "\x00\x03\x03\x00\x00", "\x00\x12\x60\x00\x01\x00\x00"} {
			f.Add(uint8(i), []byte(stream))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, stream []byte) {
		framing := all[int(which)%len(all)]
		r := bufio.NewReader(bytes.NewReader(stream))
		var buf, header []byte
		for range len(stream) + 1 {
			var err error
			buf, header, err = framing.ReadWithHeader(r, buf, header)
			if err != nil {
				_, frame := errors.AsType[*FrameError](err)
				if !frame && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if len(buf) > framing.maxBytes || cap(buf) > 2*framing.maxBytes || len(header) > maxHeaderBytes {
				t.Fatalf("%d bytes in a buffer of %d, a header of %d", len(buf), cap(buf), len(header))
			}
			if len(buf) == 0 {
				continue
			}
			again, err := framing.append(nil, buf, header)
			if err != nil {
				t.Fatal(err)
			}
			if framing.form.name == LengthVML { // what follows the length is not kept
				again = again[framing.form.size:]
			}
			if !bytes.Contains(stream, again) {
				t.Fatalf("the message read is not framed like what was there: %x", again)
			}
		}
		t.Fatal("more frames than bytes")
	})
}

// TestInterop_StockHeaders lets the library's own headers read the lengths we write, and write those we read.
func TestInterop_StockHeaders(t *testing.T) {
	t.Parallel()
	type header struct {
		length func() int
		read   func(io.Reader) (int, error)
		write  func(io.Writer) (int, error)
	}
	binary2, ascii4, bcd2, vml := network.NewBinary2BytesHeader(), network.NewASCII4BytesHeader(), network.NewBCD2BytesHeader(), network.NewVMLHeader()
	for form, header := range map[string]header{
		LengthBinary2: {binary2.Length, binary2.ReadFrom, binary2.WriteTo}, LengthASCII4: {ascii4.Length, ascii4.ReadFrom, ascii4.WriteTo},
		LengthBCD2: {bcd2.Length, bcd2.ReadFrom, bcd2.WriteTo}, LengthVML: {vml.Length, vml.ReadFrom, vml.WriteTo},
	} {
		f := builtFraming(t, FramingConfig{Length: form})
		for _, n := range []int{1, 99, 100, 136, 2048} {
			body := make([]byte, n)
			frame, err := f.Append(nil, body)
			noError(t, err)
			if size, err := header.read(bytes.NewReader(frame)); err != nil || size != f.form.size || header.length() != n {
				t.Errorf("%s: they read %d bytes of header and a length of %d, %v, want %d", form, size, header.length(), err, n)
			}
			var written bytes.Buffer
			noError(t, errors.Join(binary2.SetLength(n), vml.SetLength(n)))
			ascii4.SetLength(n)
			bcd2.SetLength(n)
			_, err = header.write(&written)
			noError(t, err)
			checkStream(t, f, bytes.NewReader(append(written.Bytes(), body...)), [][]byte{body})
		}
	}
}
