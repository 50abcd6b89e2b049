package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// maxText is how much of an answer's text is kept, in bytes, to look for the marker.
const maxText = 1 << 20

// answer is what came of a request.
type answer struct {
	verdict  string // X-PDLink
	streamed bool
	first    time.Duration // from the connection's readiness to the first text; 0: none came
	last     time.Duration // to the last text
	total    time.Duration // to the end
	pieces   int           // events with text
	text     strings.Builder
	usage    usage
	finish   string
}

// usage is what an endpoint says of tokens; nil: nothing.
type usage struct {
	prompt, generated, cached *int
}

// wireUsage is usage as APIs write it.
type wireUsage struct {
	Prompt     *int `json:"prompt_tokens"`
	Completion *int `json:"completion_tokens"`
	Details    *struct {
		Cached *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Hit *int `json:"prompt_cache_hit_tokens"`
}

// chunk is an event of a stream, or a whole answer.
type chunk struct {
	Choices []struct {
		Text    string  `json:"text"`
		Delta   *spoken `json:"delta"`
		Message *spoken `json:"message"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *wireUsage      `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// spoken is a message of a chat, or a part of one.
type spoken struct {
	Content   *string `json:"content"`
	Reasoning *string `json:"reasoning_content"`
	Thinking  *string `json:"reasoning"` // the same, by another name
}

func (s *spoken) text() (all string) {
	if s == nil {
		return ""
	}
	for i, part := range []*string{s.Content, s.Reasoning, s.Thinking} {
		if part != nil && (i < 2 || s.Reasoning == nil) {
			all += *part
		}
	}
	return all
}

// take adds an event that came at a time after the beginning.
func (a *answer) take(data []byte, at time.Duration) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%w: %q: %w", ErrAnswer, short(string(data)), err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return fmt.Errorf("%w: the endpoint says: %s", ErrCut, errorText(data))
	}
	a.use(c.Usage)
	said := ""
	for _, x := range c.Choices {
		said += x.Text + x.Delta.text() + x.Message.text()
		if x.Finish != nil && *x.Finish != "" {
			a.finish = *x.Finish
		}
	}
	if said == "" {
		return nil
	}
	if a.first == 0 {
		a.first = max(at, 1)
	}
	a.last = at
	a.pieces++
	if room := maxText - a.text.Len(); room > 0 {
		a.text.WriteString(said[:min(room, len(said))])
	}
	return nil
}

// use takes numbers of tokens: of several the last count, since they grow.
func (a *answer) use(u *wireUsage) {
	if u == nil {
		return
	}
	take := func(to **int, from *int) {
		if from != nil && *from >= 0 && *from <= 1<<30 {
			*to = from
		}
	}
	take(&a.usage.prompt, u.Prompt)
	take(&a.usage.generated, u.Completion)
	take(&a.usage.cached, u.Hit)
	if u.Details != nil {
		take(&a.usage.cached, u.Details.Cached)
	}
}

// stream reads a stream to its end. since tells the time from the beginning. The error Is
// ErrAnswer, ErrCut, or that of the connection.
func (a *answer) stream(body io.Reader, since func() time.Duration) error {
	a.streamed = true
	e := newEvents(body)
	for {
		data, err := e.next()
		at := since()
		a.total = at
		switch {
		case err == nil && string(data) == "[DONE]":
			return nil
		case err == nil:
			if err := a.take(data, at); err != nil {
				return err
			}
		case errors.Is(err, io.EOF) && a.finish != "":
			return nil // some servers leave [DONE] out
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%w after %d pieces of text", ErrCut, a.pieces)
		default:
			return err
		}
	}
}

// whole reads an answer that is no stream: there is no time of its first token.
func (a *answer) whole(body io.Reader, since func() time.Duration) error {
	data, err := io.ReadAll(io.LimitReader(body, maxWhole+1))
	a.total = since()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w after %d bytes", ErrCut, len(data))
	case err != nil:
		return err
	case len(data) > maxWhole:
		return fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxWhole)
	}
	err = a.take(data, a.total)
	a.first, a.last = 0, 0
	return err
}

// rate is decoded tokens a second: those behind the first text, over the time that they
// took. 0: it cannot be told.
func (a *answer) rate() (perSecond float64, tokens int) {
	tokens = a.pieces
	if a.usage.generated != nil {
		tokens = *a.usage.generated
	}
	if took := a.last - a.first; a.first > 0 && took > 0 && tokens > 1 {
		perSecond = float64(tokens-1) / took.Seconds()
	}
	return perSecond, tokens
}

// errorText is what an API's error object says, as one short line.
func errorText(body []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	text := string(body)
	if json.Unmarshal(body, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		var plain string
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case json.Unmarshal(e.Error, &plain) == nil && plain != "":
			text = plain
		case e.Message != "":
			text = e.Message
		case len(e.Detail) > 0:
			text = string(e.Detail)
		}
	}
	return short(text)
}

// short is text as one printable line of at most 300 bytes.
func short(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "..."
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}
