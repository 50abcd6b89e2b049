package transport_test

import (
	"errors"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"testing"

	"pdlink/transport"
)

func TestIDs(t *testing.T) {
	a, b := transport.NewID(), transport.NewID()
	if a == b || a == (transport.ID{}) {
		t.Errorf("ids %v and %v", a, b)
	}
	got, err := transport.ParseID(a.String())
	if err != nil || got != a || len(a.String()) != 32 {
		t.Errorf("ParseID(%q) = %v, %v", a.String(), got, err)
	}
	for _, s := range []string{
		"", "00", strings.Repeat("0", 32), strings.Repeat("1", 31), strings.Repeat("1", 33), strings.Repeat("1", 34),
		strings.Repeat("g", 32), " " + strings.Repeat("1", 31), strings.Repeat("../", 10) + "..",
	} {
		if id, err := transport.ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %v", s, id)
		}
	}
}

func TestPieceEnd(t *testing.T) {
	if got := (transport.Piece{Offset: 1 << 40, Length: 1<<32 - 1}).End(); got != 1<<40+1<<32-1 {
		t.Errorf("End = %d", got)
	}
}

func TestRequestValidate(t *testing.T) {
	tests := []struct {
		name string
		r    transport.Request
		want error
	}{
		{"zero", transport.Request{}, nil},
		{"last part", transport.Request{Part: 63, Parts: transport.MaxParts}, nil},
		{"largest", transport.Request{Kind: strings.Repeat("k", transport.MaxKind), Meta: make([]byte, transport.MaxMeta)}, nil},
		{"part of one", transport.Request{Part: 1}, transport.ErrInvalid},
		{"part = parts", transport.Request{Part: 2, Parts: 2}, transport.ErrInvalid},
		{"negative part", transport.Request{Part: -1, Parts: 2}, transport.ErrInvalid},
		{"negative parts", transport.Request{Parts: -1}, transport.ErrInvalid},
		{"65 parts", transport.Request{Parts: transport.MaxParts + 1}, transport.ErrInvalid},
		{"long kind", transport.Request{Kind: strings.Repeat("k", transport.MaxKind+1)}, transport.ErrTooLarge},
		{"long meta", transport.Request{Meta: make([]byte, transport.MaxMeta+1)}, transport.ErrTooLarge},
	}
	for _, tt := range tests {
		err := tt.r.Validate()
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.want == nil && tt.r.Parts < 1 {
			t.Errorf("%s: Parts %d after Validate", tt.name, tt.r.Parts)
		}
	}
}

func TestSums(t *testing.T) {
	vectors := map[string]uint64{
		"xxh3-64": 0x72dcb18b67a17dff, // as the C library computes it
		"crc32c":  0xe3069283,         // the check value of CRC-32C
		"none":    0,
	}
	for _, name := range transport.Sums() {
		sum, err := transport.SumByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := sum([]byte("123456789")); got != vectors[name] {
			t.Errorf("%s of the check string: %#x, want %#x", name, got, vectors[name])
		}
		delete(vectors, name)
	}
	if len(vectors) != 0 {
		t.Errorf("Sums lacks %v", vectors)
	}
	if last := transport.Sums()[len(transport.Sums())-1]; last != "none" {
		t.Errorf("the last resort is %q", last)
	}
	if sum, err := transport.SumByName("crc32"); err == nil || sum != nil || !strings.Contains(err.Error(), "xxh3-64") {
		t.Errorf("unknown algorithm: %v", err)
	}
	if got := crc32.Checksum([]byte("123456789"), crc32.MakeTable(crc32.Castagnoli)); got != 0xe3069283 {
		t.Errorf("CRC-32C of the check string: %#x", got)
	}
	// Callers may change what they got.
	slices.Reverse(transport.Sums())
	if transport.Sums()[0] != "xxh3-64" {
		t.Error("Sums lends its own list")
	}
}

func TestSumsSeeFaults(t *testing.T) {
	for _, name := range []string{"xxh3-64", "crc32c"} {
		sum, err := transport.SumByName(name)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 300)
		good := sum(p)
		for bit := range 8 * len(p) {
			p[bit/8] ^= 1 << (bit % 8)
			if sum(p) == good {
				t.Errorf("%s does not see bit %d", name, bit)
			}
			p[bit/8] ^= 1 << (bit % 8)
		}
		if n := testing.AllocsPerRun(100, func() { sum(p) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestErrors(t *testing.T) {
	id := transport.NewID()
	all := []error{
		transport.ErrClosed, transport.ErrLost, transport.ErrRefused, transport.ErrDuplicate, transport.ErrBusy, transport.ErrCancelled,
		transport.ErrMissing, transport.ErrTooLarge, transport.ErrProtocol, transport.ErrIncompatible, transport.ErrUnavailable, transport.ErrInsecure,
	}
	refused := func(c transport.RefuseCode) error {
		return &transport.RefusedError{Transfer: id, Code: c, Reason: "because"}
	}
	tests := []struct {
		err  error
		is   []error
		text []string
	}{
		{transport.ErrClosed, []error{transport.ErrClosed}, nil},
		{refused(transport.RefuseOther), []error{transport.ErrRefused}, []string{id.String(), "because"}},
		{refused(transport.RefuseDuplicate), []error{transport.ErrRefused, transport.ErrDuplicate}, []string{"duplicate", "because"}},
		{refused(transport.RefuseBusy), []error{transport.ErrRefused, transport.ErrBusy}, []string{"no room"}},
		{refused(200), []error{transport.ErrRefused}, nil},
		{&transport.CancelledError{Transfer: id, Reason: "tired"}, []error{transport.ErrCancelled}, []string{"here", id.String(), "tired"}},
		{&transport.CancelledError{Transfer: id, Remote: true}, []error{transport.ErrCancelled}, []string{"by peer"}},
		{&transport.MissingError{Transfer: id, Pieces: make([]transport.Piece, 3)}, []error{transport.ErrMissing}, []string{id.String(), "3"}},
		{&transport.MissingError{Transfer: id, More: true}, []error{transport.ErrMissing}, []string{"or more"}},
	}
	for _, tt := range tests {
		for _, e := range all {
			if errors.Is(tt.err, e) != slices.Contains(tt.is, e) {
				t.Errorf("%v: Is %v = %v", tt.err, e, errors.Is(tt.err, e))
			}
		}
		for _, s := range tt.text {
			if !strings.Contains(tt.err.Error(), s) {
				t.Errorf("%q does not say %q", tt.err, s)
			}
		}
	}
	if !errors.Is(transport.ErrClosed, net.ErrClosed) {
		t.Error("ErrClosed is not net.ErrClosed")
	}
}
