package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pdlink/transport/wire"
)

// series is the results of one point, by repetition.
type series struct {
	key  seriesKey
	all  []*result // those that are good
	bad  []*result
	last *result // of either, for what they have in common
}

// seriesKey is what the repetitions of a point have in common, and the same point of
// another run.
type seriesKey struct {
	Link      string `json:"link"`
	Model     string `json:"model"`
	Block     int64  `json:"block_bytes"`
	Lanes     int    `json:"lanes"`
	InFlight  int    `json:"blocks_in_flight"`
	Direction string `json:"direction"`
}

func keyOf(r *result) seriesKey {
	k := seriesKey{r.linkName(), r.Model, r.BlockBytes, r.Lanes, r.InFlight, r.Direction}
	return k
}

// block is a key's block for people.
func (k seriesKey) block() string {
	if k.Model != "" {
		return k.Model
	}
	return sizeText(k.Block)
}

// grouped are the series of results, in the order of their first ones.
func grouped(all []*result) (list []*series) {
	for _, r := range all {
		k := keyOf(r)
		i := slices.IndexFunc(list, func(s *series) bool { return s.key == k })
		if i < 0 {
			list, i = append(list, &series{key: k}), len(list)
		}
		s := list[i]
		if s.last = r; r.OK {
			s.all = append(s.all, r)
		} else {
			s.bad = append(s.bad, r)
		}
	}
	return list
}

// values are a figure of each good repetition; NaN where one does not have it.
func (s *series) values(of func(*result) float64) []float64 {
	v := make([]float64, len(s.all))
	for i, r := range s.all {
		v[i] = of(r)
	}
	return v
}

// Figures of a result, NaN where it does not have them.

func goodput(r *result) float64 { return r.Goodput }

func senderCost(r *result) float64 { return costOf(r.Sender.CPU) }

func receiverCost(r *result) float64 { return costOf(r.Receiver.CPU) }

func bothCost(r *result) float64 { return costOf(r.Both) }

func costOf(c *cpuUse) float64 {
	if c == nil {
		return math.NaN()
	}
	return c.PerGB
}

func readsOf(r *result) float64 {
	c := r.Receiver.CPU
	if c == nil {
		c = r.Both
	}
	if c == nil || c.Reads == 0 {
		return math.NaN()
	}
	return c.ReadsPerGB
}

// floorOf is the series of the floor for the same blocks, nil where there is none.
func (s *series) floor(list []*series) *series {
	for _, f := range list {
		if f.key.Link == floorLink && f.key.Model == s.key.Model && f.key.Block == s.key.Block && f.key.InFlight == s.key.InFlight {
			return f
		}
	}
	return nil
}

// pairs are the values of repetitions that both series have.
func pairs(a, b *series, of func(*result) float64) (x, y []float64) {
	for _, r := range a.all {
		for _, q := range b.all {
			if q.Rep == r.Rep {
				x, y = append(x, of(r)), append(y, of(q))
			}
		}
	}
	return x, y
}

// disturbed is how many of the good repetitions something else had a part in.
func (s *series) disturbed() (n int) {
	for _, r := range s.all {
		if len(r.Disturbed) > 0 {
			n++
		}
	}
	return n
}

// setting is a part of how a point was measured that its key does not have.
type setting struct {
	name string
	of   func(*result) string
}

func settings() []setting {
	return []setting{
		{"frames", func(r *result) string { return sizeText(r.FrameBytes) }},
		{"checksum", func(r *result) string { return r.Sum }},
		{"made beforehand", func(r *result) string { return yesNo(r.Presummed) }},
		{"zero copy", func(r *result) string { return yesNo(r.ZeroCopy) }},
		{"warm-up", func(r *result) string { return fmt.Sprintf("%g s", r.Warmup) }},
		{"sender's buffers", func(r *result) string { return fmt.Sprint(r.Sender.Owned) }},
		{"receiver's", func(r *result) string { return fmt.Sprint(r.Receiver.Owned) }},
		{"granted ahead", func(r *result) string { return fmt.Sprint(r.Receiver.Window) }},
	}
}

// differences are the settings that two series do not have in common, or that one of them
// did not keep, "frames: 1MiB and 64KiB". What a floor receives into follows the link before
// it, and is no setting.
func differences(a, b *series) (list []string) {
	for _, c := range settings() {
		if a.key.Link == floorLink && c.name == "receiver's" {
			continue
		}
		var seen []string
		for _, r := range slices.Concat(a.all, b.all) {
			if v := wire.Printable(c.of(r), 32); !slices.Contains(seen, v) {
				seen = append(seen, v)
			}
		}
		if len(seen) > 1 {
			list = append(list, c.name+": "+strings.Join(seen, " and "))
		}
	}
	return list
}
