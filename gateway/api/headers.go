package api

import (
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/schemegate/schemegate/gateway"
)

// maxWait bounds Prefer: wait. It is a preference, so more is taken as this.
const maxWait = 5 * time.Minute

// idempotencyKey reads the Idempotency-Key header: bare, or as the quoted string of RFC 9651, which names the same key.
func idempotencyKey(header http.Header) (string, error) {
	values := header.Values("Idempotency-Key")
	switch {
	case len(values) == 0:
		return "", &gateway.Error{Code: gateway.CodeKeyMissing}
	case len(values) > 1:
		return "", gateway.Errorf(gateway.CodeKeyMalformed, nil, "the header stands in the request more than once")
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		unquoted, rest, err := quotedString(key)
		if err != nil || rest != "" {
			return "", gateway.Errorf(gateway.CodeKeyMalformed, nil, "a key that begins with a quotation mark is one quoted string")
		}
		key = unquoted
	}
	switch {
	case key == "" || len(key) > gateway.MaxIdempotencyKeyBytes:
		return "", gateway.Errorf(gateway.CodeKeyMalformed, nil, "a key has 1 to %d characters", gateway.MaxIdempotencyKeyBytes)
	case !printableASCII(key):
		return "", gateway.Errorf(gateway.CodeKeyMalformed, nil, "a key has printable ASCII characters only")
	}
	return key, nil
}

func printableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// preferredWait reads the Prefer headers (RFC 7240): how long the client would wait for the final answer, nil when it does
// not say. respond-async alone is no wait at all; with a wait, the wait bounds it. Other preferences are passed over.
func preferredWait(header http.Header) (*time.Duration, error) {
	var wait *time.Duration
	var async bool
	seen := map[string]bool{}
	text := strings.Join(header.Values("Prefer"), ",")
	for text = trimListStart(text); text != ""; text = trimListStart(text) {
		name, value, rest, err := preference(text)
		if err != nil {
			return nil, gateway.Errorf(gateway.CodeMalformedHeader, nil, "Prefer: %v", err)
		}
		text = rest
		if seen[name] { // RFC 7240 section 2: only the first counts
			continue
		}
		seen[name] = true
		switch name {
		case "wait":
			d, err := deltaSeconds(value)
			if err != nil {
				return nil, gateway.Errorf(gateway.CodeMalformedHeader, nil, "Prefer: %v", err)
			}
			wait = &d
		case "respond-async":
			async = true
		}
	}
	if wait == nil && async {
		wait = new(time.Duration)
	}
	return wait, nil
}

// trimListStart passes over the separators and empty items before an item of a list (RFC 9110 section 5.6.1).
func trimListStart(s string) string { return strings.TrimLeft(s, ", \t") }

// preference reads one `token [= word] *( ; token [= word] )` off the start of a list; the parameters are dropped.
func preference(s string) (name, value, rest string, err error) {
	if name, value, rest, err = parameter(s); err != nil {
		return "", "", "", err
	}
	for strings.HasPrefix(rest, ";") {
		rest = strings.TrimLeft(rest[1:], " \t")
		if rest == "" || rest[0] == ';' || rest[0] == ',' {
			continue // the grammar allows an empty parameter
		}
		if _, _, rest, err = parameter(rest); err != nil {
			return "", "", "", err
		}
	}
	if rest != "" && rest[0] != ',' {
		return "", "", "", errors.New("preferences are separated by commas")
	}
	return strings.ToLower(name), value, rest, nil
}

// parameter reads `token [ BWS = BWS word ] OWS`.
func parameter(s string) (name, value, rest string, err error) {
	name, rest = token(s)
	if name == "" {
		return "", "", "", errors.New("a preference begins with its name")
	}
	rest = strings.TrimLeft(rest, " \t")
	after, hasValue := strings.CutPrefix(rest, "=")
	if !hasValue {
		return name, "", rest, nil
	}
	rest = strings.TrimLeft(after, " \t")
	if strings.HasPrefix(rest, `"`) {
		value, rest, err = quotedString(rest)
	} else if value, rest = token(rest); value == "" {
		err = errors.New("a value is a word or a quoted string")
	}
	return name, value, strings.TrimLeft(rest, " \t"), err
}

func token(s string) (token, rest string) {
	i := 0
	for i < len(s) && (isAlphanumeric(s[i]) || strings.IndexByte("!#$%&'*+-.^_`|~", s[i]) >= 0) {
		i++
	}
	return s[:i], s[i:]
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// quotedString reads a string in quotation marks off the start of s and takes its backslashes away.
func quotedString(s string) (value, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			i++
			if i == len(s) {
				return "", "", errors.New("a quoted string does not end")
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", errors.New("a quoted string does not end")
}

// deltaSeconds reads whole seconds and holds them to maxWait.
func deltaSeconds(s string) (time.Duration, error) {
	if s == "" {
		return 0, errors.New("wait needs a number of seconds, like wait=10")
	}
	var seconds time.Duration
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, errors.New("wait is a whole number of seconds, like wait=10")
		}
		seconds = min(seconds*10+time.Duration(s[i]-'0'), maxWait/time.Second)
	}
	return seconds * time.Second, nil
}

// checkJSON refuses a body that does not say it is JSON.
func checkJSON(header http.Header) error {
	kind, parameters, err := mime.ParseMediaType(header.Get("Content-Type"))
	switch {
	case len(header.Values("Content-Type")) > 1 || err != nil || kind != "application/json":
		return &gateway.Error{Code: gateway.CodeUnsupportedMediaType}
	case parameters["charset"] != "" && !strings.EqualFold(parameters["charset"], "utf-8"):
		return gateway.Errorf(gateway.CodeUnsupportedMediaType, nil, "JSON is UTF-8")
	case header.Get("Content-Encoding") != "":
		return gateway.Errorf(gateway.CodeUnsupportedMediaType, nil, "a body is taken as it is, without a Content-Encoding")
	}
	return nil
}

// retryAfter is the Retry-After header of an error, empty when it names no time.
func retryAfter(e *gateway.Error) string {
	if e.RetryAfterSeconds <= 0 {
		return ""
	}
	return strconv.Itoa(e.RetryAfterSeconds)
}
