package main

import (
	"math"
	"slices"
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
