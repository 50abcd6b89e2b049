package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A case is a claim about what a decoder did, so nothing in it is guessed at: the
// checks below refuse what encoding/json would bend into shape.

// checkText demands one JSON value in valid UTF-8 without lone surrogates, in which
// no object has a key twice.
func checkText(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	if !json.Valid(text) {
		var v any
		return json.Unmarshal(text, &v) // says where
	}
	var open []map[string]struct{} // nil for an array
	key := false
	for at := 0; at < len(text); at++ {
		switch text[at] {
		case '{':
			open, key = append(open, make(map[string]struct{})), true
		case '[':
			open, key = append(open, nil), false
		case '}', ']':
			open, key = open[:len(open)-1], false
		case ',':
			key = open[len(open)-1] != nil
		case '"':
			end := stringEnd(text, at)
			raw := text[at:end]
			if err := checkSurrogates(raw); err != nil {
				return err
			}
			at = end - 1
			if !key {
				continue
			}
			key = false
			var name string
			if err := json.Unmarshal(raw, &name); err != nil {
				return err
			}
			seen := open[len(open)-1]
			if _, dup := seen[name]; dup {
				return fmt.Errorf("%.100q is there twice", name)
			}
			seen[name] = struct{}{}
		}
	}
	return nil
}

// stringEnd returns where the string that begins at a quote of valid JSON ends.
func stringEnd(text []byte, at int) int {
	for at++; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// checkSurrogates refuses escapes for half a character in a string of valid JSON.
func checkSurrogates(raw []byte) error {
	half := rune(0) // a first half that waits for its second
	for at := 1; at < len(raw); at++ {
		r := rune(0)
		if raw[at] == '\\' {
			if at++; raw[at] == 'u' {
				v, err := strconv.ParseUint(string(raw[at+1:at+5]), 16, 16)
				if err != nil {
					return err
				}
				r = rune(v)
				at += 4
			}
		}
		switch {
		case half != 0 && utf16.DecodeRune(half, r) == utf8.RuneError, half == 0 && r >= 0xdc00 && r <= 0xdfff:
			return fmt.Errorf("lone surrogate in %.100s", raw)
		case half == 0 && utf16.IsSurrogate(r):
			half = r
		default:
			half = 0
		}
	}
	return nil
}

// decode reads an object with the fields of v and no others, spelt as they are, and
// none of them null.
func decode(text []byte, v any) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	known := fieldNames(reflect.TypeOf(v).Elem())
	for name, value := range object {
		if _, ok := known[name]; !ok {
			return fmt.Errorf("unknown field %.100q", name)
		}
		if string(value) == "null" && name != "note" {
			return fmt.Errorf("%s is null: leave it out", name)
		}
	}
	return json.Unmarshal(text, v)
}

// fieldNames returns the names of a struct's fields in JSON.
func fieldNames(t reflect.Type) map[string]struct{} {
	names := make(map[string]struct{})
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[name] = struct{}{}
	}
	return names
}

// checkConfig refuses keys of a model's configuration that a reader would take for
// others which they only resemble. Other keys are the model's own affair.
func checkConfig(text []byte) error {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	for name := range config {
		if low := foldName(name); low != name && configKey(low) {
			return fmt.Errorf("unknown field %.100q, for %q", name, low)
		}
	}
	scaling := config["rope_scaling"]
	if len(scaling) == 0 || scaling[0] != '{' {
		return nil
	}
	return checkConfig(scaling)
}

// foldName returns the name that encoding/json takes a field's name for.
func foldName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r == '\u017f': // long s
			return 's'
		case r == '\u212a': // Kelvin
			return 'k'
		}
		return r
	}, name)
}

// configKey reports the keys that package kernels reads.
func configKey(name string) bool {
	switch name {
	case "hidden_size", "num_hidden_layers", "head_dim", "qk_rope_head_dim", "index_head_dim", "sliding_window",
		"max_position_embeddings", "rms_norm_eps", "rope_theta", "compress_rope_theta", "compress_ratios", "rope_scaling",
		"type", "rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow":
		return true
	}
	return false
}

// ids are token ids. Only plain numbers are taken: a null would become a token 0.
type ids []uint32

// UnmarshalJSON implements json.Unmarshaler.
func (t *ids) UnmarshalJSON(text []byte) error {
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9', c == ',', c == '[', c == ']', c == ' ', c == '\n', c == '\r', c == '\t':
		default:
			return fmt.Errorf("tokens: %q where the digits of a number are expected", c)
		}
	}
	return json.Unmarshal(text, (*[]uint32)(t))
}
