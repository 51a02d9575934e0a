package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/api"
	"github.com/schemegate/schemegate/ledger/localpg"
)

const (
	// The committer's connections, the workers and some tools come beside the pool.
	minPoolConnections     = 4
	maxPoolConnections     = 200
	defaultPoolConnections = 16
)

// config is the whole file. Each package owns its piece.
type config struct {
	DataDir  string          `yaml:"data_dir"` // of the private PostgreSQL
	Database databaseConfig  `yaml:"database"`
	Log      logConfig       `yaml:"log"`
	API      api.Config      `yaml:"api"`
	Admin    api.AdminConfig `yaml:"admin"`
	Gateway  gateway.Config  `yaml:",inline"`
}

// databaseConfig names the PostgreSQL to use; without a URL the daemon runs one of its own under data_dir.
type databaseConfig struct {
	URL             string         `yaml:"url" secret:"true"`
	Password        configs.Secret `yaml:"password"`
	PoolConnections int            `yaml:"pool_connections"`
	Private         localpg.Config `yaml:"private"`
}

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

func defaultConfig() config {
	return config{
		Database: databaseConfig{PoolConnections: defaultPoolConnections},
		Log:      logConfig{Level: "info", Format: "json"},
		API:      api.DefaultConfig(),
		Admin:    api.DefaultAdminConfig(),
		Gateway:  gateway.DefaultConfig(),
	}
}

// loadConfig reads and validates a file. The error is configs.Faults, all at once, when the file could be read.
func loadConfig(file string) (config, error) {
	c, faults, data, err := readConfig(file)
	if err != nil {
		return config{}, err
	}
	return c, faults.Locate(file, data).Err()
}

// readConfig gives the faults not yet located, for a caller that has more to add.
func readConfig(file string) (c config, faults configs.Faults, data []byte, err error) {
	if data, err = os.ReadFile(file); err != nil {
		return config{}, nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	c = defaultConfig()
	faults = configs.Load(file, data, &c)
	if err := c.resolve(filepath.Dir(file)); err != nil {
		return config{}, nil, nil, err
	}
	if !faults.Unreadable() { // of a file that could not be read, every rule is broken
		c.validate(&faults)
	}
	return c, faults, data, nil
}

// resolve makes relative paths start where the configuration lies, wherever the program was started.
func (c *config) resolve(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find configuration's directory: %w", err)
	}
	paths := []*string{&c.DataDir, &c.Database.Private.BinDir, &c.Database.Password.File, &c.Gateway.Vault.HashKey.File}
	for i := range c.Gateway.Vault.SealingKeys {
		paths = append(paths, &c.Gateway.Vault.SealingKeys[i].Secret.File)
	}
	for name, l := range c.Gateway.Links {
		for _, file := range l.Files() {
			if !filepath.IsAbs(*file) {
				*file = filepath.Join(dir, *file)
			}
		}
		c.Gateway.Links[name] = l
	}
	for _, path := range paths {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	c.Database.Private.DataDir = c.DataDir
	return nil
}

func (c config) validate(f *configs.Faults) {
	c.Database.validate("database", c.DataDir, f)
	if _, err := zapcore.ParseLevel(c.Log.Level); err != nil || c.Log.Level == "" {
		f.Add("log.level", "debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "json" && c.Log.Format != "console" {
		f.Add("log.format", "json or console", c.Log.Format)
	}
	c.API.Validate("api", f)
	c.Admin.Validate("admin", f)
	if c.Admin.Listen == c.API.Listen && !strings.HasSuffix(c.API.Listen, ":0") {
		f.Add("admin.listen", "needs an address of its own", c.Admin.Listen)
	}
	c.Gateway.Validate("", f)
}

func (c databaseConfig) validate(path, dataDir string, f *configs.Faults) {
	if c.PoolConnections < minPoolConnections || c.PoolConnections > maxPoolConnections {
		f.Add(path+".pool_connections", fmt.Sprintf("%d to %d", minPoolConnections, maxPoolConnections), c.PoolConnections)
	}
	for key, n := range map[string]int{"shared_buffers_mib": c.Private.SharedBuffersMiB, "max_connections": c.Private.MaxConnections,
		"max_wal_mib": c.Private.MaxWALMiB} {
		if n < 0 {
			f.Add(path+".private."+key, "0 for the default, or more", n)
		}
	}
	if c.URL == "" {
		if dataDir == "" {
			f.Add("data_dir", "needs a directory for the private PostgreSQL, or database.url names a server", nil)
		}
		if !c.Password.IsZero() {
			f.Add(path+".password", "goes with database.url only", nil)
		}
		return
	}
	parsed, err := url.Parse(c.URL)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		f.Add(path+".url", "a URL like postgres://user@host:5432/database, with more hosts separated by commas", nil)
		return
	}
	if _, has := parsed.User.Password(); has || parsed.Query().Has("password") {
		f.Add(path+".url", "has no password in it; database.password names the place of one", nil)
	} else if _, err := pgx.ParseConfig(c.URL); err != nil {
		f.Add(path+".url", "a URL that PostgreSQL's clients read, like postgres://user@host:5432/database?sslmode=verify-full", nil)
	}
	if !c.Password.IsZero() {
		c.Password.Validate(path+".password", f)
	}
}

// connectionURL is the configured server's URL with its password.
func (c databaseConfig) connectionURL() (string, error) {
	if c.Password.IsZero() {
		return c.URL, nil
	}
	password, err := c.Password.Read()
	if err != nil {
		return "", fmt.Errorf("read database password: %w", err)
	}
	parsed, err := url.Parse(c.URL)
	if err != nil {
		return "", fmt.Errorf("read database URL: it is not a URL")
	}
	parsed.User = url.UserPassword(parsed.User.Username(), string(password))
	return parsed.String(), nil
}

// newLogger writes to w, one entry a line.
func (c logConfig) newLogger(w zapcore.WriteSyncer) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("make logger: %w", err)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(encoding)
	if c.Format == "console" {
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	return zap.New(zapcore.NewCore(encoder, w, level)), nil
}
