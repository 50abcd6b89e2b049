package calls

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pdlink/transport"
)

func sample() Call {
	return Call{Transfer: transport.ID{1, 2, 3}, Model: "m/é", Kind: "omlx", Plan: []byte("plan"), Tokens: 3, IDs: []int32{0, 7, 1<<31 - 1}}
}

// TestCallBytes holds the form of CALLS.md.
func TestCallBytes(t *testing.T) {
	c := sample()
	const head = "50444c43" + "01" + "%" + "0400" + "01020300000000000000000000000000" + "03000000" + "04000000" + "04" + "00000000000000" +
		"6d2fc3a9" + "6f6d6c78" + "706c616e"
	for _, x := range []struct {
		ids  bool
		want string
	}{
		{true, strings.Replace(head, "%", "00", 1) + "00000000" + "07000000" + "ffffff7f"},
		{false, strings.Replace(head, "%", "01", 1)},
	} {
		b, err := c.Append(nil, x.ids)
		if err != nil || hex.EncodeToString(b) != x.want || len(b) != c.Size(x.ids) {
			t.Fatalf("%x, %v, want %s", b, err, x.want)
		}
		got, err := ParseCall(b)
		want := c
		if !x.ids {
			want.IDs = nil
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}

// TestCallOfAPart holds the form of calls to a group.
func TestCallOfAPart(t *testing.T) {
	const head = "50444c43" + "01" + "%" + "0400" + "01020300000000000000000000000000" + "03000000" + "04000000" + "04" + "%" + "0000000000" +
		"6d2fc3a9" + "6f6d6c78" + "706c616e"
	for _, x := range []struct {
		follows     bool
		part, parts int
		flags, want string
	}{
		{false, 0, 2, "00", "0002"},
		{true, 1, 2, "02", "0102"},
		{true, 63, transport.MaxParts, "02", "3f40"},
	} {
		c := sample()
		c.Part, c.Parts, c.Follows = x.part, x.parts, x.follows
		want := strings.Replace(strings.Replace(head, "%", x.flags, 1), "%", x.want, 1)
		if x.follows {
			c.IDs = nil
		} else {
			want += "00000000" + "07000000" + "ffffff7f"
		}
		b, err := c.Append(nil, true)
		if err != nil || hex.EncodeToString(b) != want || len(b) != c.Size(true) {
			t.Fatalf("%x, %v, want %s", b, err, want)
		}
		if got, err := ParseCall(b); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%+v, %v, want %+v", got, err, c)
		}
		if x.follows { // with frames or without, there are no ids
			if b, err := c.Append(nil, false); err != nil || hex.EncodeToString(b) != want {
				t.Errorf("%x, %v, want %s", b, err, want)
			}
		}
	}
}

func TestCallRefuses(t *testing.T) {
	c := sample()
	good, err := c.Append(nil, true)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	u32 := func(at int, v uint32) []byte {
		return change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b })
	}
	for name, b := range map[string][]byte{
		"nothing":          nil,
		"short":            good[:39],
		"no magic":         u32(0, 1),
		"version":          change(func(b []byte) []byte { b[4] = 2; return b }),
		"no transfer":      change(func(b []byte) []byte { clear(b[8:24]); return b }),
		"no tokens":        u32(24, 0),
		"too many tokens":  u32(24, MaxTokens+1),
		"other tokens":     u32(24, 4),
		"plan too long":    u32(28, 1<<31),
		"all lengths":      u32(28, 1<<32-1),
		"kind too long":    change(func(b []byte) []byte { b[32] = transport.MaxKind + 1; return append(b, make([]byte, 99)...) }),
		"cut":              good[:len(good)-1],
		"longer":           append(bytes.Clone(good), 0),
		"negative id":      u32(len(good)-4, 1<<31),
		"ids with frames":  change(func(b []byte) []byte { b[5] = 1; return b }),
		"model as long as": change(func(b []byte) []byte { b[6], b[7] = 255, 255; return b }),
		"part of none":     change(func(b []byte) []byte { b[33] = 1; return b }),
		"part 2 of 2":      change(func(b []byte) []byte { b[33], b[34] = 2, 2; return b }),
		"too many parts":   change(func(b []byte) []byte { b[34] = transport.MaxParts + 1; return b }),
		"no ids for all":   change(func(b []byte) []byte { b[5] = 2; return b[:len(b)-12] }),
		"ids and none":     change(func(b []byte) []byte { b[5], b[34] = 2, 2; return b }),
		"none, in frames":  change(func(b []byte) []byte { b[5], b[34] = 3, 2; return b[:len(b)-12] }),
	} {
		if got, err := ParseCall(b); !errors.Is(err, ErrCall) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, bad := range []func(*Call){
		func(c *Call) { c.Tokens = 2 }, func(c *Call) { c.Transfer = transport.ID{} }, func(c *Call) { c.Model = strings.Repeat("x", 2000) },
		func(c *Call) { c.Part, c.Parts = 2, 2 }, func(c *Call) { c.Follows = true }, func(c *Call) { c.Parts = -1 },
	} {
		c := sample()
		bad(&c)
		if _, err := c.Append(nil, true); !errors.Is(err, ErrCall) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func FuzzCall(f *testing.F) {
	c := sample()
	for _, ids := range []bool{true, false} {
		b, err := c.Append(nil, ids)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	c.Part, c.Parts, c.Follows = 1, 3, true
	b, err := c.Append(nil, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCall(b)
		if err != nil {
			return
		}
		ids := c.IDs != nil
		if !ids && !c.Follows {
			c.IDs = make([]int32, c.Tokens)
		}
		again, err := c.Append(nil, ids)
		if err != nil {
			t.Fatal(err)
		}
		// Reserved bytes and flags are ignored.
		copy(b[35:40], make([]byte, 5))
		b[5] &= 3
		if !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

// delivery is a frame of ids.
func delivery(data []byte, pieces ...transport.Piece) *transport.Delivery {
	d, at, starts := new(transport.Delivery), uint32(0), []uint32{}
	for _, p := range pieces {
		starts = append(starts, at)
		at += p.Length
	}
	d.SetFrame(pieces, starts, data, nil)
	return d
}

func TestCollector(t *testing.T) {
	c := Call{Tokens: 4}
	k := NewCollector(&c)
	all := AppendIDs(nil, []int32{5, 6, 7, 1 << 30})
	frame := delivery(append(bytes.Clone(all[10:]), all[:4]...), transport.Piece{Offset: 10, Length: 6}, transport.Piece{Length: 4})
	if err := k.Add(frame); err != nil {
		t.Fatal(err)
	}
	if m := k.Missing(); !reflect.DeepEqual(m, []transport.Piece{{Offset: 4, Length: 6}}) {
		t.Errorf("missing %+v", m)
	}
	for _, p := range []transport.Piece{{Block: 1, Length: 4}, {Offset: 13, Length: 4}, {Offset: 1<<64 - 2, Length: 4}} {
		if err := k.Add(delivery(make([]byte, 4), p)); !errors.Is(err, ErrCall) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := k.Add(delivery(all[4:10], transport.Piece{Offset: 4, Length: 6})); err != nil || k.Missing() != nil {
		t.Errorf("%v, missing %+v", err, k.Missing())
	}
	if ids, err := k.IDs(); err != nil || !reflect.DeepEqual(ids, []int32{5, 6, 7, 1 << 30}) {
		t.Errorf("%v, %v", ids, err)
	}
	scattered := NewCollector(&Call{Tokens: MaxTokens})
	var err error
	for i := uint64(0); i <= maxRanges && err == nil; i++ {
		err = scattered.Add(delivery([]byte{1}, transport.Piece{Offset: 2 * i, Length: 1}))
	}
	if !errors.Is(err, ErrCall) {
		t.Errorf("ids in thousands of pieces: %v", err)
	}
}

func TestHost(t *testing.T) {
	b, err := Host{Name: "spark\n1", Models: []string{"a", "b"}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h, err := ParseHost(b)
	if err != nil || h.Name != "spark?1" || len(h.Models) != 2 || h.Version != Version {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := ParseHost([]byte(`{"version":1,"name":"x","models":["a"],"more":{}}`)); err != nil {
		t.Errorf("a field of a later version: %v", err)
	}
	for _, bad := range []string{
		``, `[]`, `{"version":2}`, `{"version":1,"models":[""]}`, `{"version":1,"models":["a\n2026 forged"]}`, `{"version":1,"models":["\u001b[2J"]}`, `{"version":1,"models":["` + strings.Repeat("x", 2000) + `"]}`,
		`{"version":1,"models":["x"` + strings.Repeat(`,"x"`, MaxModels) + `]}`, `{"version":1,"name":"` + strings.Repeat("x", maxText) + `"}`,
	} {
		if _, err := ParseHost([]byte(bad)); !errors.Is(err, ErrCall) {
			t.Errorf("%.60s: %v", bad, err)
		}
	}
	if _, err := (Host{Models: make([]string, MaxModels+1)}).Encode(); !errors.Is(err, ErrCall) {
		t.Errorf("too many models: %v", err)
	}
}

// TestGroup holds the form of a member's announcement.
func TestGroup(t *testing.T) {
	b, err := Host{Name: "b", Group: &Group{Name: "qwen", Member: 1, Members: 2}}.Encode()
	const want = `{"version":1,"name":"b","models":[],"group":{"name":"qwen","member":1,"members":2,"leads":false}}`
	if err != nil || string(b) != want {
		t.Fatalf("%s, %v, want %s", b, err, want)
	}
	h, err := ParseHost([]byte(strings.Replace(want, "qwen", "q\\nwen", 1)))
	if err != nil || h.Group == nil || h.Group.Name != "q?wen" || h.Group.String() != "part 2 of 2 of group q?wen" {
		t.Errorf("%+v, %v", h, err)
	}
	for _, bad := range []string{
		`{}`, `{"name":"x"}`, `{"name":"x","member":0,"members":1}`, `{"name":"x","member":2,"members":2}`, `{"name":"x","member":-1,"members":2}`,
		`{"name":"x","members":65}`, `{"members":2}`,
	} {
		if h, err := ParseHost([]byte(`{"version":1,"group":` + bad + `}`)); !errors.Is(err, ErrCall) {
			t.Errorf("%s: %+v, %v", bad, h.Group, err)
		}
	}
}

func TestResult(t *testing.T) {
	want := Result{
		State: Partial, Reason: "why", Blocks: 3, Total: 5, Present: 1, Bytes: 9, Clear: true, Seconds: 1.5,
		Workers: []Worker{{Rank: 1, Tokens: 7, Capture: 0.5, Fault: "gone"}},
	}
	if got, err := ParseResult(want.Encode()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	long := want
	long.Reason = strings.Repeat("r", 2*maxReason)
	for range maxWorkers {
		long.Workers = append(long.Workers, Worker{Fault: strings.Repeat("f", 2000)})
	}
	if got, err := ParseResult(long.Encode()); err != nil || len(got.Workers) != 0 || len(got.Reason) != maxReason {
		t.Errorf("a long result: %+v, %v", got, err)
	}
	for _, bad := range []string{
		``, `{"state":"odd"}`, `{"state":"complete","blocks":1,"total":2}`, `{"state":"partial","blocks":3,"total":2}`,
		`{"state":"partial","blocks":1,"present":2,"total":2}`, `{"state":"partial","present":-1}`,
	} {
		if got, err := ParseResult([]byte(bad)); !errors.Is(err, ErrCall) {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
}

func FuzzTexts(f *testing.F) {
	f.Add(Result{State: Complete, Workers: []Worker{{}}}.Encode())
	f.Add([]byte(`{"version":1,"name":"x","models":["a"]}`))
	f.Add([]byte(`{"version":1,"name":"x","models":[],"group":{"name":"g","member":1,"members":2,"leads":true}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ParseHost(b); err == nil {
			if _, err := h.Encode(); err != nil && len(b) < maxText/8 {
				t.Errorf("%+v: %v", h, err)
			}
		}
		if r, err := ParseResult(b); err == nil {
			if _, err := ParseResult(r.Encode()); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}
