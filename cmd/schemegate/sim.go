package main

import (
	"fmt"

	"go.uber.org/zap/zapcore"

	"github.com/schemegate/schemegate/gateway/sim"
)

// simCommand plays the other side.
type simCommand struct {
	Card simCardCommand `cmd:"" help:"A card scheme on a socket, with an issuer behind it; scripted by a file and by magic amounts."`
}

type simCardCommand struct {
	Config string `type:"existingfile" placeholder:"FILE" help:"The scheme's YAML file; without one it approves everything but the magic amounts."`
	Listen string `placeholder:"HOST:PORT" help:"Where to listen, instead of the file's address."`
	Log    string `default:"info" enum:"debug,info,warn,error" help:"How much to log."`
}

// Help lists the amounts that make the scheme do something special.
func (*simCardCommand) Help() string {
	return "Every amount is approved, but for these (without a file, or with magic_amounts):\n\n" + sim.MagicTable()
}

// Run plays a card scheme until a signal.
func (s *simCardCommand) Run(p process) error {
	config := sim.DefaultCardConfig()
	if s.Config != "" {
		var err error
		if config, err = sim.LoadCard(s.Config); err != nil {
			return err
		}
	}
	if s.Listen != "" {
		config.Listen = s.Listen
	}
	log, err := logConfig{Level: s.Log, Format: "console"}.newLogger(zapcore.Lock(zapcore.AddSync(p.stderr)))
	if err != nil {
		return err
	}
	card, err := sim.NewCard(config, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "card scheme on %s\n", card.Addr())
	if config.MagicAmounts {
		fmt.Fprintf(p.stdout, "\n%s", sim.MagicTable())
	}
	return card.Run(p.ctx)
}
