package main

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// serveCommand runs the daemon until a signal: the first lets it finish, the second makes it stop at once.
type serveCommand struct {
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
}

// Run loads the configuration and runs the daemon.
func (s *serveCommand) Run(p process) error {
	c, err := loadConfig(s.Config)
	if err != nil {
		return err
	}
	log, err := c.Log.newLogger(zapcore.Lock(zapcore.AddSync(p.stderr)))
	if err != nil {
		return err
	}
	log = log.With(zap.String("instance", c.Gateway.Instance))
	err = serve(p.ctx, p.cut, c, log, nil)
	if err != nil {
		log.Error("daemon ended", zap.Error(err))
		return errFound
	}
	log.Info("daemon ended")
	return nil
}

// toolLogger is for commands that print their result: only what goes wrong is logged beside it.
func toolLogger(c logConfig, p process) (*zap.Logger, error) {
	log, err := c.newLogger(zapcore.Lock(zapcore.AddSync(p.stderr)))
	if err != nil {
		return nil, err
	}
	return log.WithOptions(zap.IncreaseLevel(zapcore.WarnLevel)), nil
}
