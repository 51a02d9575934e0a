package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/schemegate/schemegate/gateway"
)

func headerOf(name string, values ...string) http.Header {
	h := http.Header{}
	for _, v := range values {
		h.Add(name, v)
	}
	return h
}

func codeOf(err error) gateway.Code {
	var e *gateway.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestIdempotencyKeyForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		values []string
		key    string
		code   gateway.Code
	}{
		{"missing", nil, "", gateway.CodeKeyMissing},
		{"bare", []string{"order-1"}, "order-1", ""},
		{"quoted", []string{`"order-1"`}, "order-1", ""},
		{"quoted with escapes", []string{`"a\"b\\c"`}, `a"b\c`, ""},
		{"a UUID", []string{"0190b2c4-1f6e-7d3a-8f00-123456789012"}, "0190b2c4-1f6e-7d3a-8f00-123456789012", ""},
		{"inner space", []string{"a b"}, "a b", ""},
		{"255 characters", []string{strings.Repeat("k", 255)}, strings.Repeat("k", 255), ""},
		{"255 characters in quotes", []string{`"` + strings.Repeat("k", 255) + `"`}, strings.Repeat("k", 255), ""},
		{"256 characters", []string{strings.Repeat("k", 256)}, "", gateway.CodeKeyMalformed},
		{"empty", []string{""}, "", gateway.CodeKeyMalformed},
		{"empty in quotes", []string{`""`}, "", gateway.CodeKeyMalformed},
		{"twice", []string{"a", "a"}, "", gateway.CodeKeyMalformed},
		{"no end quote", []string{`"a`}, "", gateway.CodeKeyMalformed},
		{"escape at the end", []string{`"a\`}, "", gateway.CodeKeyMalformed},
		{"more after the quote", []string{`"a";p=1`}, "", gateway.CodeKeyMalformed},
		{"not ASCII", []string{"schlüssel"}, "", gateway.CodeKeyMalformed},
		{"control byte", []string{"a\tb"}, "", gateway.CodeKeyMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key, err := idempotencyKey(headerOf("Idempotency-Key", c.values...))
			if key != c.key || codeOf(err) != c.code {
				t.Fatalf("got %q, %v; want %q, code %q", key, err, c.key, c.code)
			}
			if err != nil && strings.Contains(err.Error(), "4111111111111111") {
				t.Fatalf("the error quotes the key: %v", err)
			}
		})
	}
}

func TestPreferForms(t *testing.T) {
	t.Parallel()
	seconds := func(n int) *time.Duration { return pointer(time.Duration(n) * time.Second) }
	for _, c := range []struct {
		name   string
		values []string
		want   *time.Duration
		bad    bool
	}{
		{"missing", nil, nil, false},
		{"wait", []string{"wait=10"}, seconds(10), false},
		{"wait 0", []string{"wait=0"}, seconds(0), false},
		{"leading zeros", []string{"wait=007"}, seconds(7), false},
		{"upper case, spaces", []string{"Wait = 10"}, seconds(10), false},
		{"quoted", []string{`wait="10"`}, seconds(10), false},
		{"async", []string{"respond-async"}, seconds(0), false},
		{"async then wait", []string{"respond-async, wait=10"}, seconds(10), false},
		{"wait then async", []string{"wait=10, respond-async"}, seconds(10), false},
		{"two headers", []string{"respond-async", "wait=3"}, seconds(3), false},
		{"the first of two counts", []string{"wait=3, wait=9"}, seconds(3), false},
		{"others passed over", []string{`return=minimal; foo="a,b;c", , handling=lenient;, wait=4; x`}, seconds(4), false},
		{"escapes", []string{`note="a\",wait=9", wait=4`}, seconds(4), false},
		{"held to the bound", []string{"wait=99999999999999999999999"}, pointer(maxWait), false},
		{"empty items", []string{" , ,"}, nil, false},
		{"no value", []string{"wait"}, nil, true},
		{"empty value", []string{`wait=""`}, nil, true},
		{"negative", []string{"wait=-1"}, nil, true},
		{"fraction", []string{"wait=1.5"}, nil, true},
		{"unit", []string{"wait=10s"}, nil, true},
		{"no name", []string{"=10"}, nil, true},
		{"no comma", []string{"respond-async wait=10"}, nil, true},
		{"no end quote", []string{`wait="10`}, nil, true},
		{"nothing after the sign", []string{"wait="}, nil, true},
		{"garbage", []string{"wait=10 @"}, nil, true},
		{"parameter without a name", []string{"foo;=1"}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			wait, err := preferredWait(headerOf("Prefer", c.values...))
			if c.bad {
				if codeOf(err) != gateway.CodeMalformedHeader {
					t.Fatalf("got %v, %v; want code %s", wait, err, gateway.CodeMalformedHeader)
				}
				return
			}
			if err != nil || (wait == nil) != (c.want == nil) || wait != nil && *wait != *c.want {
				t.Fatalf("got %v, %v; want %v", wait, err, c.want)
			}
		})
	}
}

func FuzzPrefer(f *testing.F) {
	for _, seed := range []string{"wait=10", `a="b\"";c;d=e, wait=1`, ",;=", "\"", "a=\\"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		wait, err := preferredWait(headerOf("Prefer", value))
		if err == nil && wait != nil && (*wait < 0 || *wait > maxWait) {
			t.Fatalf("wait %v is out of bounds", *wait)
		}
		if _, err := idempotencyKey(headerOf("Idempotency-Key", value)); err != nil && codeOf(err) == "" {
			t.Fatalf("an error without a code: %v", err)
		}
	})
}

func TestContentTypeForms(t *testing.T) {
	t.Parallel()
	for value, ok := range map[string]bool{
		"application/json": true, "application/json; charset=utf-8": true, "Application/JSON;charset=UTF-8": true,
		"": false, "text/json": false, "application/json; charset=latin1": false, "application/xml": false, "application/json;;": false,
		"application/problem+json": false,
	} {
		if err := checkJSON(headerOf("Content-Type", value)); (err == nil) != ok {
			t.Errorf("%q: %v", value, err)
		}
	}
	packed := headerOf("Content-Type", "application/json")
	packed.Set("Content-Encoding", "gzip")
	if codeOf(checkJSON(packed)) != gateway.CodeUnsupportedMediaType {
		t.Error("a packed body was taken")
	}
}

func TestBearerForms(t *testing.T) {
	t.Parallel()
	first, entry, err := NewKey("bank-a", "core")
	if err != nil {
		t.Fatal(err)
	}
	second, other, err := NewKey("bank-b", "hub")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := newKeyring([]Key{entry, other})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		values []string
		tenant string
	}{
		{"first", []string{"Bearer " + first}, "bank-a"},
		{"second", []string{"bearer  " + second}, "bank-b"},
		{"missing", nil, ""},
		{"empty", []string{"Bearer "}, ""},
		{"other scheme", []string{"Basic " + first}, ""},
		{"no scheme", []string{first}, ""},
		{"two headers", []string{"Bearer " + first, "Bearer " + second}, ""},
		{"unknown", []string{"Bearer " + first + "x"}, ""},
		{"the hash is no key", []string{"Bearer " + entry.SHA256}, ""},
		{"too long", []string{"Bearer " + strings.Repeat("k", 1<<14)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			who, err := ring.authenticate(headerOf("Authorization", c.values...))
			if who.tenant != c.tenant || (err == nil) != (c.tenant != "") {
				t.Fatalf("got %+v, %v; want tenant %q", who, err, c.tenant)
			}
		})
	}
	if _, _, err := NewKey("Bank A", "core"); err == nil {
		t.Error("made a key for a tenant that the configuration would refuse")
	}
}
