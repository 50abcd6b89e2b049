package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
)

// floorVersion is of the conversation of a floor's two ends, which talk in lines
// of JSON over a socket of their own. The socket with the blocks carries nothing
// else; one byte for each block comes back on it.
const floorVersion = 1

// floorAsk is the sending end's first line.
type floorAsk struct {
	Version    int   `json:"version"`
	BlockBytes int64 `json:"block_bytes"`
	FrameBytes int64 `json:"frame_bytes"` // bytes of one read
	RecvFrames int   `json:"recv_frames"`
	LowWater   int   `json:"low_water"` // SO_RCVLOWAT, 0: untouched
}

// check refuses what a receiving end will not do, whoever asks. memory is what it has for
// a floor.
func (a *floorAsk) check(memory int64) error {
	switch {
	case a.Version != floorVersion:
		return fmt.Errorf("version %d, this end knows %d: use the same release on both ends", a.Version, floorVersion)
	case a.BlockBytes < 1 || a.BlockBytes > maxBlock:
		return fmt.Errorf("--size %s: want 1 to %s", sizeText(a.BlockBytes), sizeText(maxBlock))
	case a.FrameBytes < 1 || a.FrameBytes > maxBlock:
		return fmt.Errorf("--frame %s: want 1 to %s", sizeText(a.FrameBytes), sizeText(maxBlock))
	case a.RecvFrames < 1 || int64(a.RecvFrames) > memory/a.FrameBytes:
		return fmt.Errorf("--recv-frames %d of %s: the receiving end has 1 to %s", a.RecvFrames, sizeText(a.FrameBytes), sizeText(memory))
	case a.LowWater < 0 || a.LowWater > maxBlock:
		return fmt.Errorf("--lowat %d: want up to %s", a.LowWater, sizeText(maxBlock))
	}
	return nil
}

// floorLine is every other line: the sending end says Phase "begin" or "end",
// the receiving end answers each line, the last with its report.
type floorLine struct {
	Phase  string  `json:"phase,omitempty"`
	Error  string  `json:"error,omitempty"`
	Report *report `json:"report,omitempty"`
}

// talk is the conversation's socket. Not safe for concurrent use.
type talk struct {
	conn net.Conn
	in   *bufio.Reader
}

func newTalk(c net.Conn) *talk { return &talk{conn: c, in: bufio.NewReaderSize(c, maxLine)} }

func (t *talk) say(v any) error {
	if err := json.NewEncoder(t.conn).Encode(v); err != nil {
		return fmt.Errorf("talk to the other end: %w", err)
	}
	return nil
}

func (t *talk) hear(v any) error {
	line, err := t.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("hear from the other end: %w", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("hear from the other end: %w", err)
	}
	return nil
}

// ask says something and returns the answer.
func (t *talk) ask(v any) (floorLine, error) {
	var l floorLine
	if err := t.say(v); err != nil {
		return l, err
	}
	if err := t.hear(&l); err != nil {
		return l, err
	}
	if l.Error != "" {
		return l, errors.New("the other end: " + printable(l.Error))
	}
	return l, nil
}
