package codec

import "fmt"

// Mode is what an operator wants of a link. The zero value is Auto.
type Mode uint8

// The modes.
const (
	Auto Mode = iota // payloads are coded when that pays, see Governor
	Off              // no payload is coded, in either direction
	OnlyLZ4
	OnlyBF16
)

// Modes returns the names that ParseMode knows, Auto's first.
func Modes() []string { return []string{"auto", "off", "lz4", "bf16"} }

// ParseMode reads a mode's name; the empty one is Auto's. The error names the others.
func ParseMode(name string) (Mode, error) {
	if name == "" {
		return Auto, nil
	}
	for i, m := range Modes() {
		if m == name {
			return Mode(i), nil
		}
	}
	return Auto, fmt.Errorf("codec: compression %q: want one of %q", name, Modes())
}

// String returns the mode's name.
func (m Mode) String() string {
	if names := Modes(); int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// codecs are what an end with this mode codes with, where the peer takes it.
func (m Mode) codecs() []ID {
	switch m {
	case OnlyLZ4:
		return []ID{LZ4}
	case OnlyBF16:
		return []ID{BF16}
	case Auto:
		return All()
	}
	return nil
}
