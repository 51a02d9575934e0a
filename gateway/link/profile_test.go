package link

import "github.com/schemegate/schemegate/iso8583"

// The profiles of single tests, each in what it differs from DefaultConfig.

func ascii4Framing() iso8583.FramingConfig {
	cfg := iso8583.DefaultFramingConfig()
	cfg.Length = iso8583.LengthASCII4
	return cfg
}

func inclusiveFraming() iso8583.FramingConfig {
	cfg := iso8583.DefaultFramingConfig()
	cfg.Includes = iso8583.IncludesLength
	return cfg
}

func notSignedOnSpec(code string) iso8583.SpecConfig {
	cfg := iso8583.DefaultSpecConfig()
	cfg.ResponseCodes = map[string]string{code: iso8583.NotSignedOn.String()}
	return cfg
}

// dialectSpec is a built-in dialect.
func dialectSpec(dialect iso8583.Dialect) iso8583.SpecConfig {
	cfg := iso8583.DefaultSpecConfig()
	cfg.Dialect = dialect
	return cfg
}
