package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

const (
	maxDumpBytes    = 1 << 20 // of text
	maxFramesShown  = 1000
	frameReadBuffer = 4096
)

type specDecodeCommand struct {
	Config  string `type:"existingfile" placeholder:"FILE" help:"Read the message as a link of this configuration does."`
	Link    string `placeholder:"NAME" help:"The link; without it default_link, or the only one."`
	Dialect string `placeholder:"NAME" help:"Read it as this built-in dialect, such as 1987-bcd."`
	File    string `type:"existingfile" placeholder:"FILE" help:"Read it as this dialect file says."`
	Framed  bool   `help:"The bytes are frames, as they stood on the line, and not one message alone."`

	Hex []string `arg:"" placeholder:"HEX" help:"The message in hexadecimal digits; - reads a dump from standard input."`
}

// Help tells what is taken.
func (*specDecodeCommand) Help() string {
	return "The dump may have spaces and line ends, and be what xxd, hexdump -vC or tcpdump -X print, offsets and text included. A command " +
		"line can be seen by every user of a machine, so give real messages on standard input:\n\n" +
		"  xxd frame.bin | schemegate spec decode --config schemegate.yaml --link visa-a --framed -\n\n" +
		"Without --config, --dialect or --file the dialect is 1987-ascii. What is wrong is told with the element, the offset in the message " +
		"and the rule, and the exit code is then 1. Card numbers are masked, and elements that can hold card data are only said to be there."
}

// Run prints an explanation of each message.
func (d *specDecodeCommand) Run(p process) error {
	spec, framing, err := d.dialect()
	if err != nil {
		return err
	}
	dump, err := d.dump(p.stdin)
	if err != nil {
		return err
	}
	raw, err := parseDump(dump)
	if err != nil {
		return fmt.Errorf("read hex dump: %w", err)
	}
	if !d.Framed {
		return explain(p.stdout, spec, raw)
	}
	return explainFrames(p.stdout, spec, framing, raw)
}

// dump is the text of the message.
func (d *specDecodeCommand) dump(stdin io.Reader) (string, error) {
	if len(d.Hex) != 1 || d.Hex[0] != "-" {
		return strings.Join(d.Hex, "\n"), nil
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxDumpBytes+1))
	if err != nil {
		return "", fmt.Errorf("read hex dump: %w", err)
	}
	if len(text) > maxDumpBytes {
		return "", fmt.Errorf("read hex dump: at most %d bytes of text", maxDumpBytes)
	}
	return string(text), nil
}

// dialect is what the flags name.
func (d *specDecodeCommand) dialect() (*iso8583.Spec, *iso8583.Framing, error) {
	named := 0
	for _, flag := range []string{d.Config, d.Dialect, d.File} {
		if flag != "" {
			named++
		}
	}
	if named > 1 || d.Link != "" && d.Config == "" {
		return nil, nil, errors.New("choose dialect: one of --config (with --link), --dialect and --file")
	}
	if d.Config != "" {
		return d.linkDialect()
	}
	framing, err := iso8583.FramingConfig{}.Build()
	if err != nil {
		return nil, nil, err
	}
	if d.File == "" {
		spec, err := iso8583.SpecConfig{Dialect: iso8583.Dialect(d.Dialect)}.Build()
		if err != nil {
			return nil, nil, fmt.Errorf("choose dialect: %w", err)
		}
		return spec, framing, nil
	}
	data, err := readSpecFile(d.File)
	if err != nil {
		return nil, nil, err
	}
	spec, faults := loadDialect(d.File, data)
	return spec, framing, faults.Err()
}

// linkDialect is that of a link. Faults elsewhere in the configuration do not matter here.
func (d *specDecodeCommand) linkDialect() (*iso8583.Spec, *iso8583.Framing, error) {
	c, faults, data, err := readConfig(d.Config)
	if err != nil {
		return nil, nil, err
	}
	if faults.Unreadable() {
		return nil, nil, faults
	}
	name := d.Link
	if name == "" {
		name = c.Gateway.DefaultLink
	}
	if names := slices.Collect(maps.Keys(c.Gateway.Links)); name == "" && len(names) == 1 {
		name = names[0]
	}
	link, ok := c.Gateway.Links[name]
	if !ok {
		return nil, nil, fmt.Errorf("choose dialect: %s has no link %q", d.Config, name)
	}
	var wrong configs.Faults
	for _, fault := range faults {
		ofLink := strings.HasPrefix(fault.Path, "links."+name+".spec.") || strings.HasPrefix(fault.Path, "links."+name+".framing.")
		if fault.Line > 0 && (ofLink || fault.File != d.Config) { // keys nobody knows, and a file that the link names
			wrong = append(wrong, fault)
		}
	}
	spec, err := link.Spec.Build()
	wrong.AddError("links."+name+".spec", err)
	framing, err := link.Framing.Build()
	wrong.AddError("links."+name+".framing", err)
	return spec, framing, wrong.Locate(d.Config, data).Err()
}

// explain prints one message; the error is errFound when something is wrong with it.
func explain(w io.Writer, spec *iso8583.Spec, body []byte) error {
	x := spec.Explain(body)
	fmt.Fprint(w, x)
	if len(x.Faults) == 0 {
		return nil
	}
	if fit := fittingDialects(body); len(fit) > 0 {
		fmt.Fprintf(w, "it would be right in dialect %s\n", strings.Join(fit, ", "))
	}
	return errFound
}

// fittingDialects names the built-in dialects in which nothing is wrong with the message.
func fittingDialects(body []byte) []string {
	var fit []string
	for _, name := range iso8583.Dialects() {
		for _, bitmap := range []iso8583.BitmapForm{iso8583.BitmapBinary, iso8583.BitmapHex} {
			spec, err := iso8583.SpecConfig{Dialect: name, Bitmap: bitmap}.Build()
			if err == nil && len(spec.Explain(body).Faults) == 0 {
				fit = append(fit, fmt.Sprintf("%s with a %s bitmap", name, bitmap))
			}
		}
	}
	return fit
}

// explainFrames prints every frame, in whichever direction they all went.
func explainFrames(w io.Writer, spec *iso8583.Spec, framing *iso8583.Framing, raw []byte) error {
	if !readable(framing, raw) && readable(framing.Peer(), raw) {
		framing = framing.Peer()
	}
	framing = framing.Diagnosing(spec)
	stream := bytes.NewReader(raw)
	r := bufio.NewReaderSize(stream, frameReadBuffer)
	var found error
	for n := 1; n <= maxFramesShown; n++ {
		at := len(raw) - stream.Len() - r.Buffered()
		body, err := framing.Read(r, nil)
		switch end := len(raw) - stream.Len() - r.Buffered(); {
		case err == io.EOF:
			return found
		case err != nil:
			fmt.Fprintf(w, "frame %d at offset %d\nwrong: %v\n", n, at, err)
			return errFound
		case len(body) == 0:
			fmt.Fprintf(w, "frame %d at offset %d: keep-alive\n", n, at)
		default:
			fmt.Fprintf(w, "frame %d at offset %d: message of %d bytes at offset %d\n", n, at, len(body), end-len(body))
			if err := explain(w, spec, body); err != nil {
				found = err
			}
		}
	}
	fmt.Fprintf(w, "the first %d frames; there may be more\n", maxFramesShown)
	return found
}

// readable tells whether the bytes are frames as this side reads them; the last one may be cut off.
func readable(framing *iso8583.Framing, raw []byte) bool {
	r := bufio.NewReader(bytes.NewReader(raw))
	for {
		if _, err := framing.Read(r, nil); err != nil {
			_, broken := errors.AsType[*iso8583.FrameError](err)
			return !broken
		}
	}
}
