package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Limits of a stream.
const (
	maxEvent  = 4 << 20   // bytes of an event's data; a usual one has 300
	maxStream = 256 << 20 // bytes of all of it: MaxAnswer tokens, each in an event of 4 KB
)

// events reads server-sent events, as the HTML standard defines them: lines end with LF, CR
// or both, comments are passed over, and several data lines are one event. An event that
// is not followed by an empty line counts all the same where the stream ends. One
// goroutine uses it.
type events struct {
	r      *bufio.Reader
	left   int // bytes that may still come
	line   []byte
	afterC bool // the last line ended with CR: an LF that follows is part of that end
	begun  bool
}

func newEvents(r io.Reader) *events {
	return &events{r: bufio.NewReader(r), left: maxStream}
}

// next returns the data of the next event that has any, valid until the next call. At the end the error is io.EOF; it Is ErrAnswer
// where a limit is exceeded.
func (e *events) next() ([]byte, error) {
	var data []byte
	some := false
	for {
		line, err := e.readLine()
		if len(line) > 0 {
			field, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			if string(field) == "data" {
				if len(data)+len(value) >= maxEvent {
					return nil, fmt.Errorf("%w: an event of more than %d bytes", ErrAnswer, maxEvent)
				}
				if some {
					data = append(data, '\n')
				}
				data, some = append(data, value...), true
			}
		}
		if some && (err == nil && len(line) == 0 || errors.Is(err, io.EOF)) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// readLine returns a line without its end, valid until the next call. What comes with an
// error is a line too.
func (e *events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		c, err := e.r.ReadByte()
		if err != nil {
			return e.line, err
		}
		if e.left--; e.left < 0 {
			return nil, fmt.Errorf("%w: a stream of more than %d bytes", ErrAnswer, maxStream)
		}
		skip := e.afterC && c == '\n'
		e.afterC = c == '\r'
		switch {
		case skip:
		case c == '\n' || c == '\r':
			if !e.begun {
				e.begun = true
				e.line = bytes.TrimPrefix(e.line, []byte("\xef\xbb\xbf"))
			}
			return e.line, nil
		case len(e.line) >= maxEvent:
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrAnswer, maxEvent)
		default:
			e.line = append(e.line, c)
		}
	}
}
