package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/iso8583"
)

// specCommand is for whoever writes the profile of a scheme. It needs no database and no daemon.
type specCommand struct {
	Lint   specLintCommand   `cmd:"" help:"Check a dialect file or a whole configuration, and warn of what is right but seldom meant."`
	Decode specDecodeCommand `cmd:"" help:"Explain a message given as a hex dump, card data masked."`
}

type specLintCommand struct {
	File string `arg:"" type:"existingfile" placeholder:"FILE" help:"A dialect file, as spec.file of a link names it, or a configuration."`
}

// Help tells the exit codes.
func (*specLintCommand) Help() string {
	return "Every fault is a line with file, line, key, value and rule, and the exit code is then 1. A line that begins with \"warning:\" is " +
		"about a profile that works and that a scheme's host may yet surprise; the exit code stays 0."
}

// Run prints one line a fault or warning, and ok when there is no fault.
func (l *specLintCommand) Run(p process) error {
	faults, warnings, err := lint(l.File)
	if err != nil {
		return err
	}
	for _, fault := range faults {
		fmt.Fprintln(p.stdout, fault)
	}
	for _, warning := range warnings {
		fmt.Fprintln(p.stdout, "warning:", warning)
	}
	if len(faults) > 0 {
		return errFound
	}
	fmt.Fprintln(p.stdout, "ok")
	return nil
}

// lint gives what is wrong with a file and what deserves a look.
func lint(file string) (faults, warnings configs.Faults, err error) {
	dialect, data, err := isDialectFile(file)
	if err != nil {
		return nil, nil, err
	}
	if dialect {
		spec, faults := loadDialect(file, data)
		if spec != nil {
			warnings.AddError("", spec.Warnings())
		}
		return faults, warnings.Locate(file, data), nil
	}
	c, faults, data, err := readConfig(file)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Gateway.Links)) {
		warnLink("links."+name, c.Gateway.Links[name], &warnings)
	}
	return faults.Locate(file, data), warnings.Locate(file, data), nil
}

// isDialectFile tells a dialect file from a configuration by which of the two knows more of its keys.
func isDialectFile(file string) (bool, []byte, error) {
	data, err := readSpecFile(file)
	if err != nil {
		return false, nil, err
	}
	dialect, whole := iso8583.SpecConfig{}, defaultConfig()
	return unknownKeys(configs.Load(file, data, &dialect)) <= unknownKeys(configs.Load(file, data, &whole)), data, nil
}

// maxSpecFileBytes is a little more than what a configuration may have, so that the loader can say that it is too long.
const maxSpecFileBytes = 1 << 20

func readSpecFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read dialect: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSpecFileBytes))
	if err != nil {
		return nil, fmt.Errorf("read dialect: %w", err)
	}
	return data, nil
}

func unknownKeys(faults configs.Faults) int {
	n := 0
	for _, fault := range faults {
		if strings.HasPrefix(fault.Rule, "unknown key") && !strings.Contains(fault.Path, ".") {
			n++
		}
	}
	return n
}

// loadDialect gives the dialect of a file; nil after a fault.
func loadDialect(file string, data []byte) (*iso8583.Spec, configs.Faults) {
	config := iso8583.DefaultSpecConfig()
	faults := configs.Load(file, data, &config)
	if faults.Unreadable() {
		return nil, faults
	}
	spec, err := config.Build()
	faults.AddError("", err)
	if len(faults) > 0 {
		return nil, faults.Locate(file, data)
	}
	return spec, nil
}

// warnLink adds what a bank's engineer would want to hear about a link that may have no fault.
func warnLink(path string, c gateway.LinkConfig, warnings *configs.Faults) {
	if spec, err := c.Spec.Build(); err == nil {
		warnings.AddError(path+".spec", spec.Warnings())
	}
	warnKey(path+".correlation", c.Correlation, false, warnings)
	warnKey(path+".correlation_network", c.CorrelationNetwork, true, warnings)
	for _, mti := range slices.Sorted(maps.Keys(c.Correlations)) {
		warnKey(path+".correlations."+mti.String(), c.Correlations[mti], mti.Class() == networkClass, warnings)
	}
	for i, e := range c.StoredElements {
		if privateUse(e) {
			warnings.Add(path+".stored_elements."+strconv.Itoa(i), "hosts put verification values into this element, which must never be stored: ask the scheme what it holds", e)
		}
	}
}

const networkClass = 8 // second digit of a message type: network management

// Elements that hosts are known to give back unchanged in their answers.
var (
	returned = []iso8583.Element{iso8583.ProcessingCode, iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal,
		iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID, iso8583.CardAcceptorID, iso8583.CurrencyTransaction}
	returnedByNetwork = []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TimeLocal}
)

// warnKey looks for elements that would leave answers without their request.
func warnKey(path string, key []iso8583.Element, network bool, warnings *configs.Faults) {
	for i, e := range key {
		at := path + "." + strconv.Itoa(i)
		switch {
		case e == iso8583.ApprovalCode || e == iso8583.ResponseCode:
			warnings.Add(at, "only a response has it, so no request has this key", e)
		case network && !slices.Contains(returnedByNetwork, e):
			warnings.Add(at, "an answer to network management often lacks it, and then answers nobody", e)
		case network:
		case e == iso8583.AmountTransaction:
			warnings.Add(at, "a partial approval has another amount than its request, and then answers nobody", e)
		case !slices.Contains(returned, e):
			warnings.Add(at, "a response often lacks it, and then answers nobody", e)
		}
	}
	if !slices.Contains(key, iso8583.STAN) && !slices.Contains(key, iso8583.RRN) && len(key) > 0 {
		warnings.Add(path, "has neither DE 11 nor DE 37, so two requests of one terminal can have the same key", nil)
	}
}

// privateUse tells the elements whose content each scheme defines for itself.
func privateUse(e iso8583.Element) bool {
	return e >= 46 && e <= 48 || e >= 56 && e <= 63 || e >= 104 && e <= 127
}
