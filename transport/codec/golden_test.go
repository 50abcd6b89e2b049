package codec_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"pdlink/transport/codec"
)

// recorded is 120 numbers whose exponents take five values, one of them most often.
func recorded() []byte {
	var b []byte
	for i := range uint16(120) {
		exponent := 120 + i%7*(i%3)%5
		b = binary.LittleEndian.AppendUint16(b, i%2<<15|exponent<<7|i*37%128)
	}
	return b
}

// TestCodedBytes: what is on the wire stays what it is. The first is by hand.
func TestCodedBytes(t *testing.T) {
	for name, tt := range map[string]struct {
		coded string
		want  []byte
	}{
		"one exponent, at odd places": {
			"03" + "09" + "000102030405068788" + "01010000" + "7f",
			[]byte{9, 0x80, 0x3f, 0x81, 0x3f, 0x82, 0x3f, 0x83, 0x3f, 0x84, 0x3f, 0x85, 0x3f, 0x86, 0x3f, 0x87, 0xbf, 0x88, 0xbf},
		},
		"as it is":       {"00" + "0102", []byte{1, 2}},
		"zeros, and one": {"05" + "2a" + "01010000" + "00" + "01010000" + "00", append(make([]byte, 32), 42)},
		"Huffman":        {huffman, recorded()},
	} {
		coded, err := hex.DecodeString(tt.coded)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(tt.want))
		var d codec.Decoder
		if err := d.Decode(codec.BF16, got, coded); err != nil || !bytes.Equal(got, tt.want) {
			t.Errorf("%s: %x, %v, want %x", name, got, err, tt.want)
		}
	}
}

// huffman is those numbers: a form, the rests, a plane with its table.
const huffman = "01" +
	"00a54aef14b95e8328cd72973ce106ab50f51abf64892ed3789d42e70cb156fb20c56a8f34d97ea348ed12b75c8126cb70953adf04a94ef318bd6287" +
	"2cd1769b40e50aaf54f91ec3688d32d77ca146eb10b55aff24c96e9338dd02a74cf116bb60852acf74993ee308ad52f71cc1668b30d57a9f44e90eb3" +
	"002e000007f01100ff37701e080008000800f90e33324af31d06c828cd779891511a779891519aef3007519aef3023a33407"
