package omlx

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"pdlink/kernels/safetensors"
)

const casesDir = "../../tools/pdlink/testdata/cases"

var caseNames = []string{"kv-qwen3", "dsv4-a", "dsv4-b"}

// goldenCase is a prompt with the blocks that the real decoder wrote for it.
type goldenCase struct {
	dir    string
	spec   Spec
	tokens []uint32
	hashes []Hash
}

func loadCase(t testing.TB, name string) *goldenCase {
	t.Helper()
	c := &goldenCase{dir: filepath.Join(casesDir, name)}
	raw, err := os.ReadFile(filepath.Join(c.dir, "case.json"))
	if err != nil {
		t.Fatal(err)
	}
	var j struct {
		Kind, Model, Format string
		BlockSize           int `json:"block_size"`
		Layers              int
		KVHeads             int `json:"kv_heads"`
		HeadDim             int `json:"head_dim"`
		PoolState           int `json:"pool_state_elements"`
		Config              struct {
			Window int   `json:"sliding_window"`
			Head   int   `json:"head_dim"`
			Index  int   `json:"index_head_dim"`
			Ratios []int `json:"compress_ratios"`
		}
		Tokens []uint32
		Blocks []Hash
	}
	if err := json.Unmarshal(raw, &j); err != nil {
		t.Fatal(err)
	}
	c.tokens, c.hashes = j.Tokens, j.Blocks
	c.spec = Spec{Kind: j.Kind, Model: j.Model, BlockTokens: j.BlockSize, Format: j.Format, PoolState: j.PoolState,
		Layers: j.Layers, KVHeads: j.KVHeads, HeadDim: max(j.HeadDim, j.Config.Head),
		Window: j.Config.Window, IndexHeadDim: j.Config.Index, Ratios: j.Config.Ratios}
	return c
}

// expected returns the path of the decoder's own block k.
func (c *goldenCase) expected(k int) string {
	name := c.hashes[k].String()
	return filepath.Join(c.dir, "expected", name[:1], name+blockSuffix)
}

func openTensors(t testing.TB, path string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func tensorBytes(t testing.TB, f *safetensors.File, name string) []byte {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	buf := make([]byte, x.Size())
	if err := f.ReadTensor(x, buf); err != nil {
		t.Fatal(err)
	}
	return buf
}

// fileName is the tensor that holds an array, told from the format's naming rules
// and not from the layout.
func fileName(s Spec, layer int, a Array) string {
	p := "layer_" + strconv.Itoa(layer)
	switch {
	case a == K, a == Window && s.Ratios[layer] == 0:
		return p + "_state_0"
	case a == V:
		return p + "_state_1"
	case a == Window:
		return p + "_sub_0_state_0"
	case a >= IdxPooled:
		return p + "_sub_2_state_" + strconv.Itoa(int(a-IdxPooled)+2)
	}
	return p + "_sub_1_state_" + strconv.Itoa(int(a-Pooled)+2)
}

// wireOf cuts block k's wire data out of a block file: pools are its last rows.
func wireOf(t testing.TB, l *Layout, path string) []byte {
	t.Helper()
	f := openTensors(t, path)
	out := make([]byte, l.WireSize())
	for _, w := range l.WireTensors() {
		data := tensorBytes(t, f, fileName(l.spec, w.Layer, w.Array))
		copy(out[w.Off:w.Off+w.Size], data[int64(len(data))-w.Size:])
	}
	return out
}

// wireFromState builds block k's wire data from the decoder's own arrays.
func wireFromState(t testing.TB, c *goldenCase, l *Layout, k int) []byte {
	t.Helper()
	f := openTensors(t, filepath.Join(c.dir, "state.safetensors"))
	out := make([]byte, l.WireSize())
	at := "@" + strconv.Itoa((k+1)*c.spec.BlockTokens)
	names := map[Array]string{Window: "win" + at, Pooled: "pooled", PrevKV: "prev_kv" + at, PrevGate: "prev_gate" + at,
		IdxPooled: "idx_pooled", IdxPrevKV: "idx_prev_kv" + at, IdxPrevGate: "idx_prev_gate" + at}
	for _, w := range l.WireTensors() {
		data := tensorBytes(t, f, "layer_"+strconv.Itoa(w.Layer)+"."+names[w.Array])
		if w.Array == Pooled || w.Array == IdxPooled {
			data = data[int64(k)*w.Size:]
		}
		copy(out[w.Off:w.Off+w.Size], data)
	}
	return out
}

// put writes wire data in random pieces and order.
func put(t testing.TB, j *Job, rng *rand.Rand, k int, wire []byte) {
	t.Helper()
	cuts := []int{0, len(wire)}
	for range 20 {
		cuts = append(cuts, rng.IntN(len(wire)))
	}
	slices.Sort(cuts)
	for _, i := range rng.Perm(len(cuts) - 1) {
		if err := j.Write(k, int64(cuts[i]), wire[cuts[i]:cuts[i+1]]); err != nil {
			t.Fatal(err)
		}
	}
}

func mustBegin(t testing.TB, s *Store, p Plan) *Job {
	t.Helper()
	j, err := s.Begin(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// mustOpen opens a store that does not wait for the disk: no test cuts the power.
func mustOpen(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, StoreOptions{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sealAndPublish(t testing.TB, j *Job, k int) {
	t.Helper()
	if err := j.Seal(k); err != nil {
		t.Fatal(err)
	}
	if err := j.Publish(k); err != nil {
		t.Fatal(err)
	}
}

func createdAt(t testing.TB, path string) string {
	t.Helper()
	return openTensors(t, path).Metadata()[keyCreated]
}

// TestRebuildGolden writes the decoder's blocks again from their parts and wants
// the same bytes.
func TestRebuildGolden(t *testing.T) {
	for _, name := range caseNames {
		t.Run(name, func(t *testing.T) {
			c := loadCase(t, name)
			l, err := NewLayout(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for k := range c.hashes {
				// Each block has its own time of writing, so each gets a store.
				s := mustOpen(t, t.TempDir())
				j := mustBegin(t, s, Plan{Spec: c.spec, Tokens: c.tokens, Hashes: c.hashes[:k+1], CreatedAt: createdAt(t, c.expected(k))})
				for i := range k + 1 {
					put(t, j, rng, i, wireOf(t, l, c.expected(i)))
					sealAndPublish(t, j, i)
				}
				sameBytes(t, c.expected(k), s.Path(c.hashes[k]))
			}
		})
	}
}

func sameBytes(t testing.TB, wantPath, gotPath string) {
	t.Helper()
	want, err := os.ReadFile(wantPath)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(gotPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		d, err := Compare(wantPath, gotPath)
		t.Fatalf("%s differs: %v, %v", filepath.Base(gotPath), d, err)
	}
}

// TestCheckGolden reads the decoder's blocks and finds nothing wrong with them.
func TestCheckGolden(t *testing.T) {
	for _, name := range caseNames {
		c := loadCase(t, name)
		l, err := NewLayout(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		for k := range c.hashes {
			b, err := ReadBlock(c.expected(k))
			if err != nil {
				t.Fatal(err)
			}
			if f := Check(b, CheckOptions{Layout: l, Tokens: c.tokens, Finite: true}); len(f) > 0 {
				t.Errorf("%s block %d: %v", name, k, f)
			}
			if b.Hash != c.hashes[k] || b.Tokens != c.spec.BlockTokens || len(b.Layers) != l.spec.Layers {
				t.Errorf("%s block %d: %+v", name, k, b)
			}
			if want := (k + 1) * c.spec.BlockTokens; c.spec.Kind == KindDSV4 && b.End != want {
				t.Errorf("%s block %d ends at %d, want %d", name, k, b.End, want)
			}
		}
	}
}

// TestAgainstPythonWriter compares whole stores with those of the other writer.
func TestAgainstPythonWriter(t *testing.T) {
	const created = "1795973845.4564774"
	recorded := openRecord(t, "testdata/py/blocks.json")
	for _, v := range []struct {
		name, kase, format string
		state              int
		change             func(*Spec)
		py                 string
	}{
		{"kv 3", "kv-qwen3", "3", 0, nil, `{}`},
		{"kv 5", "kv-qwen3", "5", 0, nil, `{}`},
		{"kv 3 embedded", "kv-qwen3", "3", 0, func(s *Spec) { s.Options.PayloadLayout = LayoutEmbedded }, `{"layout":"embedded"}`},
		{"kv fork", "kv-qwen3", "3", 0, func(s *Spec) { s.Options.NoBlockSize, s.Options.NoSignature = true, true },
			`{"no_block_size":true,"no_signature":true}`},
		{"kv other model", "kv-qwen3", "3", 0, func(s *Spec) { s.Model = "modèle \"x\"/\\模型😀" }, `{"model":"modèle \"x\"/\\模型😀"}`},
		{"kv salted", "kv-qwen3", "3", 0, func(s *Spec) { s.Options.ExtraKeys = []string{"it's", "b"} }, `{"extra":["it's","b"]}`},
		{"3 of three", "dsv4-a", "3", 3, nil, `{}`},
		{"3 of five", "dsv4-a", "3", 5, nil, `{}`},
		{"3 of five, named", "dsv4-a", "3", 5, func(s *Spec) { s.Options.ClassNames = On }, `{"class_names":true}`},
		{"4 of three", "dsv4-a", "4", 3, nil, `{}`},
		{"4 of five", "dsv4-a", "4", 5, nil, `{}`},
		{"5 of five", "dsv4-a", "5", 5, nil, `{}`},
		{"5 of five, large", "dsv4-b", "5", 5, nil, `{}`},
		{"3 of five, large", "dsv4-b", "3", 5, nil, `{}`},
		{"5, odd options", "dsv4-a", "5", 5, func(s *Spec) {
			s.Options = Options{ZeroDimDType: "BF16", Subtypes: Off, PayloadLayout: LayoutNone}
		}, `{"zero_dim":"BF16","subtypes":false,"layout":null}`},
	} {
		t.Run(v.name, func(t *testing.T) {
			c := loadCase(t, v.kase)
			c.spec.Format, c.spec.PoolState = v.format, v.state
			if v.change != nil {
				v.change(&c.spec)
			}
			other := t.TempDir()
			if havePython(t) {
				cmd := exec.Command("python3", "testdata/py/write_blocks.py", c.dir, other, v.format, strconv.Itoa(v.state), created, v.py)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			l, err := NewLayout(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			p := Plan{Spec: c.spec, Tokens: c.tokens, CreatedAt: created,
				Hashes: Chain(c.spec.Model, c.spec.BlockTokens, c.tokens, c.spec.Options.ExtraKeys)}
			s := mustOpen(t, t.TempDir())
			j := mustBegin(t, s, p)
			rng := rand.New(rand.NewPCG(3, 4))
			for k := range p.Hashes {
				if c.spec.Kind == KindKV {
					put(t, j, rng, k, wireOf(t, l, c.expected(k)))
				} else {
					put(t, j, rng, k, wireFromState(t, c, l, k))
				}
				sealAndPublish(t, j, k)
			}
			theirs := mustOpen(t, other)
			for k, h := range p.Hashes {
				if havePython(t) {
					sameBytes(t, theirs.Path(h), s.Path(h))
				}
				recorded.check(t, v.name+"/"+h.String(), digestOf(t, s.Path(h)))
				if b, f := CheckFile(s.Path(h), CheckOptions{Layout: l, Tokens: c.tokens, Finite: true}); b == nil || slices.ContainsFunc(f, hard) {
					t.Errorf("block %d: %v", k, f)
				}
			}
		})
	}
}

func hard(f Finding) bool { return !f.Warn }
