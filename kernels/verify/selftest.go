package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pdlink/kernels"
)

// selfCuts are chunk lengths that begin and end at odd places of windows, pools and
// blocks.
func selfCuts() [][]int { return [][]int{{512}, {777}, {1, 2, 3, 130, 131, 515}} }

// cutsOf are the lengths that cut a prompt of so many tokens.
func cutsOf(tokens int) [][]int {
	return slices.DeleteFunc(selfCuts(), func(cuts []int) bool { return cuts[0] >= tokens })
}

// cut runs a layer in chunks: not a bit may change.
func (v *verifier) cut(ctx context.Context, layer int, x []uint16, whole *sequence) error {
	for _, cuts := range cutsOf(v.o.Tokens) {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := v.once(v.engine, layer, 0, nil, x, cuts...)
		if err != nil {
			return err
		}
		v.cuts++
		if why := s.differs(whole.arrays); why != "" {
			v.fail(inCuts, "layer %d in chunks of %v: %s", layer, cuts, why)
		}
	}
	return nil
}

// resume begins a layer at each boundary, with what the run before had there, and
// one block earlier without anything, as behind a prefix that the decoder holds. From
// the boundary on not a bit may differ.
func (v *verifier) resume(ctx context.Context, layer int, x []uint16, whole *sequence) error {
	g, block := v.rec.Geometry, v.rec.BlockTokens
	for pos := block; pos < v.o.Tokens; pos += block {
		if err := ctx.Err(); err != nil {
			return err
		}
		state := whole.states[pos]
		s, err := v.once(v.engine, layer, pos, &state, x[pos*g.Hidden:], 333)
		if err != nil {
			return err
		}
		v.seeds++
		if why := s.differs(v.behind(layer, whole, pos, s)); why != "" {
			v.fail(inSeeds, "layer %d begun at token %d: %s", layer, pos, why)
		}
		if pos+block >= v.o.Tokens {
			continue
		}
		bare := kernels.State{Win: state.Win, WithoutPrevious: true}
		if s, err = v.once(v.engine, layer, pos, &bare, x[pos*g.Hidden:], 333); err != nil {
			return err
		}
		v.seeds++
		s.drop(layer, &g, pos, pos+block)
		if why := s.differs(v.behind(layer, whole, pos+block, s)); why != "" {
			v.fail(inSeeds, "layer %d begun at token %d, without the window before, and looked at from %d on: %s", layer, pos, pos+block, why)
		}
	}
	return nil
}

// behind is what of a whole run a run that begins at a boundary makes again.
func (v *verifier) behind(layer int, whole *sequence, pos int, s *sequence) map[string][]uint16 {
	g := &v.rec.Geometry
	want := map[string][]uint16{}
	for name, a := range whole.arrays {
		if _, made := s.arrays[name]; made || after(name, pos) {
			want[name] = a
		}
	}
	if r := g.Ratios[layer]; r > 0 {
		want[arrayPooled] = whole.arrays[arrayPooled][pos/r*g.HeadDim:]
		if r == 4 {
			want[arrayIndex] = whole.arrays[arrayIndex][pos/r*g.IndexDim:]
		}
	}
	// Before rotation, the reference knows a window only once all of it is its own.
	for at := range whole.states {
		name := fmt.Sprintf("%s@%d", arrayBefore, at)
		if _, made := s.arrays[name]; !made {
			delete(want, name)
		}
	}
	return want
}

// after reports whether an array is of a boundary behind pos, or of the end.
func after(name string, pos int) bool {
	for i := range name {
		if name[i] != '@' {
			continue
		}
		at := 0
		_, err := fmt.Sscan(name[i+1:], &at)
		return err != nil || at > pos
	}
	return true
}

// drop leaves out what a run that began at token from made up to token to.
func (s *sequence) drop(layer int, g *kernels.Geometry, from, to int) {
	if r := g.Ratios[layer]; r > 0 {
		s.arrays[arrayPooled] = s.arrays[arrayPooled][(to-from)/r*g.HeadDim:]
		if r == 4 {
			s.arrays[arrayIndex] = s.arrays[arrayIndex][(to-from)/r*g.IndexDim:]
		}
	}
	for name := range s.arrays {
		if name != arrayPooled && name != arrayIndex && !after(name, to-1) {
			delete(s.arrays, name)
		}
	}
}

// report puts together what was found.
func (v *verifier) report() Report {
	c := v.engine.Choice()
	r := Report{Engine: c.Engine.String(), Why: c.Why, Numerics: v.numerics.String(), Tokens: v.o.Tokens, Layers: len(v.o.Layers)}
	if v.why != "" {
		r.Why = v.why
	}
	for i, name := range []string{Arrays, Pooled} {
		r.Checks = append(r.Checks, v.settled(v.held(name, i), i))
	}
	self := Check{Name: SelfTest, Result: Passed, Detail: fmt.Sprintf("%d runs in chunks of %v gave the bits of one", v.cuts, cutsOf(v.o.Tokens))}
	if v.cuts == 0 {
		self.Result, self.Detail = LeftOut, fmt.Sprintf("a prompt of %d tokens cannot be cut", v.o.Tokens)
		if v.o.Tokens == 1 {
			self.Detail = "a prompt of one token cannot be cut"
		}
	}
	r.Checks = append(r.Checks, v.settled(self, inCuts))
	next := Check{Name: Continuation, Result: Passed, Detail: fmt.Sprintf("%d runs that began at a block's end gave the bits of one", v.seeds)}
	if v.seeds == 0 {
		next.Result, next.Detail = LeftOut, fmt.Sprintf("the prompt does not go beyond its first %d tokens, a block", v.rec.BlockTokens)
	}
	r.Checks = append(r.Checks, v.settled(next, inSeeds))
	return r
}

// held is what became of Arrays or Pooled.
func (v *verifier) held(name string, i int) Check {
	recorded := v.recorded.of(i == inPooled)
	check := Check{Name: name, Result: Passed, Classes: append(recorded, v.reference.of(i == inPooled)...)}
	for _, class := range check.Classes {
		if !class.Good() {
			v.fail(i, "%s are beyond their limits", class.Name)
		}
	}
	if len(check.Classes) == 0 {
		check.Result, check.Detail = LeftOut, v.nothing(i)
		return check
	}
	check.Detail = v.found[i].String()
	if len(recorded) == 0 {
		check.Detail = "nothing is recorded: held against the reference"
	}
	if short := v.short(); i == inPooled && short != "" {
		check.Detail = strings.TrimPrefix(check.Detail+"; "+short, "; ")
	}
	return check
}

// settled turns a check into a failed one where something is wrong.
func (v *verifier) settled(c Check, i int) Check {
	if v.wrong[i] != "" {
		c.Result, c.Detail = Failed, v.wrong[i]
	}
	return c
}
