package seal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"pdlink/transport/seal"
)

// vectors is testdata/vectors.json.
type vectors struct {
	Proofs []struct {
		Suite     string
		Lane      int
		Direction seal.Direction
		Proof     string
	}
	Frames []frameVector
}

type frameVector struct {
	Suite      string
	Lane       int
	Direction  seal.Direction
	Frame      uint64
	Record     int
	Header     string
	Payload    int
	Head       string
	BodyStart  string `json:"body_start"`
	BodySHA256 string `json:"body_sha256"`
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Proofs) != 12 || len(v.Frames) != 8 {
		t.Fatalf("%d proofs and %d frames", len(v.Proofs), len(v.Frames))
	}
	return v
}

// suiteOf is the suite that two ends agree on which name it in their hellos.
func suiteOf(t *testing.T, name string) seal.Suite {
	t.Helper()
	s, err := seal.Agree([]string{"seal/" + name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestProofVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range readVectors(t).Proofs {
		got, err := testSecret().Proof(suiteOf(t, v.Suite), v.Lane, v.Direction)
		if err != nil || hex.EncodeToString(got[:]) != v.Proof {
			t.Errorf("%s, lane %d, direction %d: %x, %v, want %s", v.Suite, v.Lane, v.Direction, got, err, v.Proof)
		}
		seen[v.Proof] = true
	}
	if len(seen) != 12 {
		t.Errorf("%d different proofs", len(seen))
	}
}

// TestFrameVectors goes to each vector's frame by sealing all frames before it.
func TestFrameVectors(t *testing.T) {
	small := makeFrame(t, 8, 2, 7)
	for i, v := range readVectors(t).Frames {
		o := seal.Options{Suite: suiteOf(t, v.Suite), Record: v.Record}
		p := pair{t, newSealer(t, testSecret(), v.Lane, v.Direction, o), newOpener(t, testSecret(), v.Lane, v.Direction, o)}
		for range v.Frame {
			if f, err := p.open(p.seal(small), 0); err != nil || !f.equal(small) {
				t.Fatalf("vector %d: a frame before it: %v", i, err)
			}
		}
		pieces := map[int]int{8: 2, 65541: 1, 196608: 3}[v.Payload]
		f := makeFrame(t, v.Payload, pieces, 7)
		if got := hex.EncodeToString(f.header); got != v.Header {
			t.Errorf("vector %d: header %s, want %s", i, got, v.Header)
		}
		s := p.seal(f)
		if got := hex.EncodeToString(s.head); got != v.Head {
			t.Errorf("vector %d: head\n%s, want\n%s", i, got, v.Head)
		}
		sum := sha256.Sum256(s.body)
		start := hex.EncodeToString(s.body[:min(len(s.body), 32)])
		if got := hex.EncodeToString(sum[:]); got != v.BodySHA256 || start != v.BodyStart {
			t.Errorf("vector %d: body %s of hash %s, want %s, %s", i, start, got, v.BodyStart, v.BodySHA256)
		}
		if bytes.Contains(s.head, f.header[:16]) || bytes.Contains(s.body, f.payload) {
			t.Errorf("vector %d: something is in clear", i)
		}
		if g, err := p.open(s, 1000); err != nil || !g.equal(f) {
			t.Errorf("vector %d: not opened: %v", i, err)
		}
	}
}
