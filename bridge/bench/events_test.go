package bench

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// allEvents reads a stream to its end.
func allEvents(r io.Reader) (list []string, err error) {
	e := newEvents(r)
	for {
		data, err := e.next()
		if err != nil {
			return list, err
		}
		list = append(list, string(data))
	}
}

// TestEvents: as the HTML standard has them, in pieces of any size.
func TestEvents(t *testing.T) {
	for in, want := range map[string][]string{
		"data: a\n\ndata: b\n\n":                  {"a", "b"},
		"data: a\r\n\r\ndata: b\r\n\r\n":          {"a", "b"},
		"data: a\r\rdata: b\r\r":                  {"a", "b"},
		"data: a\r\n\ndata:b\n\r\n":               {"a", "b"},
		": keep-alive\n\n:\n\ndata: a\n\n: x\n\n": {"a"},
		"event: x\nid: 7\nretry: 5\ndata: a\n\n":  {"a"},
		"data: a\ndata:  b\n\n":                   {"a\n b"},
		"data\n\n":                                {""},
		"\xef\xbb\xbfdata: a\n\n":                 {"a"},
		"data: a":                                 {"a"},
		"data: a\n":                               {"a"},
		"datum: a\n\n":                            nil,
		"":                                        nil,
		"\n\n\n":                                  nil,
		"data: {\"a\":\n\ndata: 1}\n\ndata: [DONE]": {`{"a":`, "1}", "[DONE]"},
	} {
		for name, r := range map[string]io.Reader{
			"at once": strings.NewReader(in), "by bytes": iotest.OneByteReader(strings.NewReader(in)), "by halves": iotest.HalfReader(strings.NewReader(in)),
		} {
			if got, err := allEvents(r); !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
				t.Errorf("%q %s: %q, %v", in, name, got, err)
			}
		}
	}
	if _, err := allEvents(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("data: a\n\n")))); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%v", err)
	}
}

// endless is lines that go on.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ':'
		if i%100 == 99 {
			p[i] = '\n'
		}
	}
	return len(p), nil
}

// TestStreamsAreBounded: comments, too.
func TestStreamsAreBounded(t *testing.T) {
	e := newEvents(endless{})
	if e.left != maxStream {
		t.Errorf("%d bytes", e.left)
	}
	e.left = 1 << 20
	if data, err := e.next(); data != nil || !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), "a stream of more than") {
		t.Errorf("%v", err)
	}
}

// FuzzEvents: no input makes it panic, and how it is cut into pieces changes nothing.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\r\n\r\n", ": x\n\ndata: a\ndata: b\n\n", "data\r\r", "\xef\xbb\xbfdata: a\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, err := allEvents(bytes.NewReader(in))
		pieces, err2 := allEvents(iotest.OneByteReader(bytes.NewReader(in)))
		if !slices.Equal(whole, pieces) || !errors.Is(err, io.EOF) || !errors.Is(err2, io.EOF) {
			t.Errorf("%q, %v; %q, %v", whole, err, pieces, err2)
		}
		n := 0
		for _, data := range whole {
			n += len(data)
		}
		if n > len(in) {
			t.Errorf("%d bytes of %d", n, len(in))
		}
	})
}

// FuzzChunk: no event makes it panic, and numbers of tokens are believable.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{
		`{"choices":[{"delta":{"content":"a","reasoning_content":"b"},"finish_reason":null}],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}}`,
		`{"error":{"message":"x"}}`, `{"error":"x"}`, `{"error":null,"detail":[1]}`, `{"usage":{"completion_tokens":-1,"prompt_cache_hit_tokens":9e99}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var a answer
		if err := a.take(in, time.Second); err != nil && !errors.Is(err, ErrAnswer) && !errors.Is(err, ErrCut) {
			t.Errorf("%v", err)
		}
		for _, n := range []*int{a.usage.prompt, a.usage.generated, a.usage.cached} {
			if n != nil && (*n < 0 || *n > 1<<30) {
				t.Errorf("%d tokens", *n)
			}
		}
		if text := errorText(in); strings.ContainsAny(text, "\n\x1b") || len(text) > 310 {
			t.Errorf("%q", text)
		}
	})
}

// TestTimesAndRates: the first text counts, not the first event; the rate is that of what
// comes behind it.
func TestTimesAndRates(t *testing.T) {
	at := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9}
	i := -1
	since := func() time.Duration { i++; return at[i] * time.Second }
	body := `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}

: keep-alive

data: {"choices":[{"delta":{"reasoning_content":"hm"}}],"usage":{"completion_tokens":1}}

data: {"choices":[{"delta":{"content":"a"}}]}

data: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":5}}}

data: [DONE]

data: {"choices":[{"delta":{"content":"too late"}}]}

`
	var a answer
	if err := a.stream(strings.NewReader(body), since); err != nil {
		t.Fatal(err)
	}
	rate, tokens := a.rate()
	if a.first != 2*time.Second || a.last != 4*time.Second || a.total != 6*time.Second || rate != 4 || tokens != 9 || a.text.String() != "hmab" ||
		*a.usage.prompt != 7 || *a.usage.cached != 5 || a.finish != "stop" {
		t.Errorf("%+v, %v of %d", &a, rate, tokens)
	}
	var b answer // some servers end without [DONE], and say nothing of tokens
	i = -1
	rest, _, _ := strings.Cut(body, `data: {"choices":[],`)
	if err := b.stream(strings.NewReader(strings.ReplaceAll(rest, `,"usage":{"completion_tokens":1}`, "")), since); err != nil {
		t.Fatal(err)
	}
	if rate, tokens := b.rate(); rate != 1 || tokens != 3 {
		t.Errorf("%v of %d", rate, tokens)
	}
}
