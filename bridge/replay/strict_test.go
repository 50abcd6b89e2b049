package replay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
)

// small is the text of a case that loads.
const small = `{"kind":"kv","model":"m","format":"3","block_size":2,"layers":1,"kv_heads":1,"head_dim":1,"tokens":[1,2,3]}`

func loadText(t *testing.T, text string) (*replay.Case, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "case.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return replay.Load(dir)
}

// TestCaseIsReadStrictly: nothing in case.json is guessed at.
func TestCaseIsReadStrictly(t *testing.T) {
	with := func(more string) string { return small[:len(small)-1] + "," + more + "}" }
	swap := func(from, to string) string {
		if !strings.Contains(small, from) {
			t.Fatalf("no %s", from)
		}
		return strings.Replace(small, from, to, 1)
	}
	for name, c := range map[string]struct{ text, say string }{
		"as it is":          {small, ""},
		"for people":        {with(`"decoder":"omlx","boundaries":[2,3],"note":{"by":["me",null,{"Kind":1}]}`), ""},
		"a null note":       {with(`"note":null`), ""},
		"other layout":      {with(`"layout_options":{"no_block_size":true,"no_signature":true}`), ""},
		"white space":       {"\n" + swap(`[1,2,3]`, "[ 1 ,\t2\r\n, 3 ]") + " \n", ""},
		"whole characters":  {swap(`"m"`, `"\ud83d\ude00 \u00e9 \\ud800 é \u2028"`), ""},
		"unknown field":     {with(`"colour":"blue"`), `unknown field "colour"`},
		"unknown option":    {with(`"layout_options":{"no_such":true}`), `unknown field "no_such"`},
		"case of an option": {with(`"layout_options":{"No_Signature":true}`), `unknown field "No_Signature"`},
		"other case":        {swap(`"model"`, `"Model"`), `unknown field "Model"`},
		"other letter":      {swap(`"kind"`, `"\u212aind"`), "unknown field"},
		"in two cases":      {with(`"MODEL":"x"`), `unknown field "MODEL"`},
		"twice":             {with(`"model":"x"`), `"model" is there twice`},
		"twice, escaped":    {with(`"mod\u0065l":"x"`), `"model" is there twice`},
		"twice below":       {with(`"note":[{"a":[{"b":1,"b":2}]}]`), `"b" is there twice`},
		"null token":        {swap(`[1,2,3]`, `[1,null,3]`), "digits"},
		"null tokens":       {swap(`[1,2,3]`, `null`), "tokens is null"},
		"float token":       {swap(`[1,2,3]`, `[1,2.0,3]`), "digits"},
		"text token":        {swap(`[1,2,3]`, `[1,"2",3]`), "digits"},
		"nested token":      {swap(`[1,2,3]`, `[1,[2],3]`), "tokens"},
		"one number":        {swap(`[1,2,3]`, `123`), "tokens"},
		"null size":         {swap(`"block_size":2`, `"block_size":null`), "block_size is null"},
		"null options":      {with(`"layout_options":null`), "layout_options is null"},
		"null option":       {with(`"layout_options":{"no_signature":null}`), "no_signature is null"},
		"null hash":         {with(`"blocks":[null]`), "blocks"},
		"invalid byte":      {swap(`"m"`, "\"m\xff\""), "UTF-8"},
		"half a character":  {swap(`"m"`, `"\ud83d"`), "lone surrogate"},
		"the second half":   {swap(`"m"`, `"\ude00"`), "lone surrogate"},
		"halves apart":      {swap(`"m"`, `"\ud83dx\ude00"`), "lone surrogate"},
		"two first halves":  {swap(`"m"`, `"\ud83d\ud83d\ude00"`), "lone surrogate"},
		"half in a key":     {with(`"note":{"\uD800":1}`), "lone surrogate"},
		"half in a note":    {with(`"note":"\udc00"`), "lone surrogate"},
		"mark at the start": {"\ufeff" + small, "invalid character"},
		"two values":        {small + small, "after top-level value"},
	} {
		_, err := loadText(t, c.text)
		if c.say == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.say != "" && (!errors.Is(err, replay.ErrCase) || !strings.Contains(err.Error(), c.say)) {
			t.Errorf("%s: %v; want %q", name, err, c.say)
		}
	}
}

// changed returns the text of a bundled case with other fields or another
// configuration.
func changed(t testing.TB, name string, change func(whole, config map[string]json.RawMessage)) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(casesDir, name, "case.json"))
	if err != nil {
		t.Fatal(err)
	}
	var whole, config map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(text, &whole), json.Unmarshal(whole["config"], &config)); err != nil {
		t.Fatal(err)
	}
	change(whole, config)
	if whole["config"], err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestModelConfig: a model's configuration may hold anything, but nothing that only
// resembles what is read.
func TestModelConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(config map[string]json.RawMessage)
		say    string
	}{
		"more keys": {func(c map[string]json.RawMessage) {
			c["architectures"] = json.RawMessage(`["X"]`)
			c["Colour"] = json.RawMessage(`null`)
		}, ""},
		"other case":  {func(c map[string]json.RawMessage) { c["Hidden_Size"] = json.RawMessage(`64`) }, `for "hidden_size"`},
		"long s":      {func(c map[string]json.RawMessage) { c["\u017fliding_window"] = json.RawMessage(`64`) }, `for "sliding_window"`},
		"below":       {func(c map[string]json.RawMessage) { c["rope_scaling"] = json.RawMessage(`{"Type":"yarn"}`) }, `for "type"`},
		"no geometry": {func(c map[string]json.RawMessage) { clear(c) }, "num_hidden_layers"},
		"too short": {func(c map[string]json.RawMessage) { c["max_position_embeddings"] = json.RawMessage(`1023`) },
			"max_position_embeddings is 1023, the 2 blocks to place end at token 1024"},
		"just long enough": {func(c map[string]json.RawMessage) { c["max_position_embeddings"] = json.RawMessage(`1024`) }, ""},
	} {
		_, err := loadText(t, changed(t, "dsv4-a", func(_, config map[string]json.RawMessage) { c.change(config) }))
		if (c.say == "") != (err == nil) || (err != nil && (!errors.Is(err, replay.ErrCase) || !strings.Contains(err.Error(), c.say))) {
			t.Errorf("%s: %v; want %q", name, err, c.say)
		}
	}
	if _, err := loadText(t, strings.Replace(small, `"kv"`, `"dsv4"`, 1)); !errors.Is(err, replay.ErrCase) || !strings.Contains(err.Error(), "config: it is missing") {
		t.Error(err)
	}
}

// TestRecorded: the decoder's own blocks are there if one of those is that the case
// places, and those alone are compared.
func TestRecorded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv-qwen3")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(casesDir, "kv-qwen3"))); err != nil {
		t.Fatal(err)
	}
	c, err := replay.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := c.Spec(replay.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Spec(replay.Overrides{Format: omlx.Format5})
	if err != nil {
		t.Fatal(err)
	}
	expected := filepath.Join(dir, "expected")
	path := func(k int) string {
		h := c.Plan(spec).Hashes[k].String()
		return filepath.Join(expected, h[:1], h+".safetensors")
	}
	compare := func(identical, different, missing int) {
		t.Helper()
		got, err := c.Compare(expected)
		if err != nil || got.Identical != identical || got.Different != different || got.Missing != missing {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if !c.Recorded(spec) || c.Recorded(other) {
		t.Error("recorded is wrong")
	}
	compare(5, 0, 0)
	if got, err := c.Compare(t.TempDir()); err != nil || got.Missing != 5 || len(got.Findings) != 5 {
		t.Errorf("an empty store: %+v, %v", got, err)
	}
	for k := range 4 {
		if err := os.Remove(path(k)); err != nil {
			t.Fatal(err)
		}
	}
	if !c.Recorded(spec) {
		t.Error("one block is not enough")
	}
	compare(1, 0, 0)
	// What is left is no block of the plan: a directory of that name, other files.
	if err := errors.Join(os.Remove(path(4)), os.Mkdir(path(4), 0o700), os.WriteFile(filepath.Join(expected, "notes"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if c.Recorded(spec) {
		t.Error("a directory counts as a block")
	}
	if err := errors.Join(os.RemoveAll(expected), os.Mkdir(expected, 0o700)); err != nil {
		t.Fatal(err)
	}
	if c.Recorded(spec) {
		t.Error("an empty directory counts as recorded")
	}
	compare(0, 0, 0)
}

// TestLargeCase: a prompt of 1M tokens loads, checks included.
func TestLargeCase(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(small[:strings.Index(small, "[")+1])
	b.WriteString(strings.Repeat("129279,", 1<<20-1) + "1]}")
	c, err := loadText(t, b.String())
	if err != nil || len(c.Tokens) != 1<<20 || c.Tokens[5] != 129279 {
		t.Errorf("%v", err)
	}
}
