package main

import (
	"errors"
	"fmt"

	"go.uber.org/zap/zapcore"

	"github.com/schemegate/schemegate/migrations"
)

// migrateCommand applies what is missing of the schema. The daemon does the same when it starts.
type migrateCommand struct {
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
}

// Run migrates and says what version the database has now.
func (m *migrateCommand) Run(p process) (err error) {
	c, err := loadConfig(m.Config)
	if err != nil {
		return err
	}
	log, err := c.Log.newLogger(zapcore.Lock(zapcore.AddSync(p.stderr)))
	if err != nil {
		return err
	}
	d, err := openDatabase(p.ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close(p.cut)) }()
	if err := migrations.Up(p.ctx, d.url, log); err != nil {
		return err
	}
	if err := d.connect(p.ctx, minPoolConnections); err != nil {
		return err
	}
	have, _, err := migrations.Current(p.ctx, d.pool)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "schema version %d\n", have)
	return nil
}
