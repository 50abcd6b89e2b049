package bench

import (
	"fmt"
	"strings"
)

// Level is how a check went.
type Level string

// The levels.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn" // figures are to be read with care
	LevelFail Level = "fail" // something is not as it should be
)

// Check is one thing that was looked at.
type Check struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
}

// Limits of checks.
const (
	slower   = 0.02 // share that decoding may be slower when bridged
	fewSaid  = 16   // tokens below which an answer says little of a rate
	fewRuns  = 3    // runs below which a difference may be chance
	coldMost = 0.10 // share of a prompt that may be cached when it is cold: a template's beginning is
	warmMost = 0.50 // share that has to be cached when it is warm
	scarce   = 0.05 // share of the memory that has to be left: below, systems begin to swap

	swappedMost = 64 << 20 // bytes that may be swapped out in a request: what lay idle for long
)

// checks looks at all that was measured.
func (r *Report) checks() (out []Check) {
	add := func(c Check, there bool) {
		if there {
			out = append(out, c)
		}
	}
	add(r.answered())
	add(r.bridged())
	add(r.kept())
	add(r.alone())
	add(r.cold())
	add(r.warm())
	add(r.markers())
	for i := range r.Lengths {
		add(r.rates(&r.Lengths[i]))
	}
	add(r.heat())
	add(r.memory())
	return out
}

// tally calls f with each row that counts and is of one of some arms, and returns how
// many f is true of, of how many, and the text of the first.
func (r *Report) tally(f func(*Row) (hit bool, text string), arms ...Arm) (hits, all int, first string) {
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, arm := range arms {
			if row.Arm != arm || !row.Counted {
				continue
			}
			all++
			if hit, text := f(row); hit {
				if hits++; hits == 1 {
					first = fmt.Sprintf("%s, %d tokens, run %d: %s", row.Arm, row.Want, row.Run, text)
				}
			}
		}
	}
	return hits, all, first
}

func verdictOn(name string, hits, all int, good, bad, first string, level Level) (Check, bool) {
	if hits == 0 {
		return Check{name, LevelOK, fmt.Sprintf("%d of %d %s", all, all, good)}, all > 0
	}
	return Check{name, level, fmt.Sprintf("%d of %d %s; first %s", hits, all, bad, first)}, true
}

func (r *Report) answered() (Check, bool) {
	hits, all, first := r.tally(func(x *Row) (bool, string) { return x.Error != "", x.Error }, Arms()...)
	return verdictOn("answered", hits, all, "requests were answered to their end", "requests failed", first, LevelFail)
}

// bridged holds verdicts against what was wanted. A prompt that the front left to the decoder
// on purpose is no failure, and neither is an endpoint that never says anything: it may be
// another program's front. One that says something of other prompts has to.
func (r *Report) bridged() (Check, bool) {
	said := func(x *Row) string { return or(x.Verdict, "no verdict") }
	mute, passed, _ := r.tally(func(x *Row) (bool, string) { return x.Error == "" && x.Verdict == "", "" }, Bridged)
	if mute > 0 && !r.tells() {
		return Check{"bridged", LevelWarn, fmt.Sprintf("%d of %d have no verdict, so whether they were bridged is not known: is that URL a front of pdlink?", mute, passed)}, true
	}
	hits, all, first := r.tally(func(x *Row) (bool, string) {
		return x.Error == "" && x.Outcome != outcomeBridged && x.Outcome != "bypass", said(x)
	}, Bridged)
	if hits == 0 && passed > 0 {
		left, _, first := r.tally(func(x *Row) (bool, string) { return x.Outcome == "bypass", said(x) }, Bridged)
		if left > 0 {
			return Check{"bridged", LevelWarn, fmt.Sprintf("%d of %d were left to the decoder; first %s", left, passed, first)}, true
		}
	}
	return verdictOn("bridged", hits, all, "verdicts are complete", "were not wholly bridged", first, LevelFail)
}

// kept holds the decoder's word against the front's.
func (r *Report) kept() (Check, bool) {
	some := false
	hits, all, first := r.tally(func(x *Row) (bool, string) {
		some = some || x.Promised > 0 && x.Cached != nil
		return x.Promised > 0 && x.Cached != nil && *x.Cached < x.Promised, fmt.Sprintf("%s of %d", cachedText(x), x.Promised)
	}, Bridged)
	c, _ := verdictOn("cached", hits, all, "found as many cached tokens as were promised", "found fewer cached tokens than were promised", first, LevelFail)
	return c, some
}

// alone finds a front where the decoder itself should be.
func (r *Report) alone() (Check, bool) {
	hits, all, first := r.tally(func(x *Row) (bool, string) { return x.Verdict != "", x.Verdict }, Native)
	c, _ := verdictOn("native", hits, all, "", "had a verdict, so that URL leads to a front: give the decoder's own", first, LevelFail)
	return c, hits > 0
}

func (r *Report) cold() (Check, bool) {
	known := false
	hits, all, first := r.tally(func(x *Row) (bool, string) {
		if x.Cached == nil {
			return false, ""
		}
		known = true
		return float64(*x.Cached) > coldMost*float64(x.Tokens), cachedText(x)
	}, Native, Engine)
	c, _ := verdictOn("cold", hits, all, "were cold where they had to be, as far as answers say", "were not cold", first, LevelFail)
	return c, known
}

func (r *Report) warm() (Check, bool) {
	known := false
	hits, all, first := r.tally(func(x *Row) (bool, string) {
		if x.Cached == nil || x.Error != "" {
			return false, ""
		}
		known = true
		return float64(*x.Cached) < warmMost*float64(x.Tokens), cachedText(x)
	}, Warm)
	c, _ := verdictOn("warm", hits, all, "were warm when they came again", "were not warm when they came again", first, LevelWarn)
	return c, known
}

// markers is a failure where a bridged answer lost what a native one of that length found.
func (r *Report) markers() (Check, bool) {
	if !r.Finds {
		return Check{"marker", LevelWarn, "the model names no marker even of a short prompt: answers were not held to it"}, r.Front != "" || r.Native != ""
	}
	missed := func(x *Row) (bool, string) {
		return x.Marker == MarkerMissing && x.Error == "", "its answer does not name the marker"
	}
	ours, all, first := r.tally(missed, Bridged, Warm)
	natives, of, at := r.tally(missed, Native)
	level := LevelFail
	if natives > 0 { // at such lengths the model itself loses it
		level = LevelWarn
	}
	if ours == 0 {
		ours, first = natives, at
	}
	return verdictOn("marker", ours, all+of, "answers name the marker in the middle of the prompt", "answers do not name the marker", first, level)
}

// rates holds the decode rates of a length against each other. Rates whose runs overlap
// cannot be told apart.
func (r *Report) rates(l *Length) (Check, bool) {
	n, b := l.Arms[Native].Rate, l.Arms[Bridged].Rate
	if n == nil || b == nil {
		return Check{}, false
	}
	text := fmt.Sprintf("%d tokens: %.1f tok/s bridged, %.1f native, %+.1f %%", l.Want, b.Median, n.Median, 100*(l.Rate-1))
	if l.Pairs != nil {
		text += fmt.Sprintf(" (%d of %d pairs within %.0f %%)", l.Within, l.Pairs.N, 100*slower)
	}
	short, _, _ := r.tally(func(x *Row) (bool, string) { return x.Want == l.Want && x.Error == "" && x.Said < fewSaid, "" }, Native, Bridged)
	switch {
	case short > 0:
		return Check{"decode rate", LevelWarn, fmt.Sprintf("%s, but answers have fewer than %d tokens", text, fewSaid)}, true
	case l.Rate >= 1-slower && l.Pairs != nil && 2*l.Within < l.Pairs.N:
		return Check{"decode rate", LevelWarn, text + ", but in most rounds bridged decoding was slower than that: medians alone agree"}, true
	case l.Rate >= 1-slower:
		return Check{"decode rate", LevelOK, text}, true
	case n.N < fewRuns || b.N < fewRuns:
		return Check{"decode rate", LevelWarn, fmt.Sprintf("%s, but of fewer than %d runs each", text, fewRuns)}, true
	case b.Most >= n.Least*(1-slower):
		return Check{"decode rate", LevelWarn, text + ", but single runs overlap: measure more of them"}, true
	}
	return Check{"decode rate", LevelFail, text}, true
}

// memory finds requests during which the host swapped or hardly had memory left.
func (r *Report) memory() (Check, bool) {
	told, before := false, uint64(0)
	least := ^uint64(0)
	var why []string
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Host.Available == 0 {
			continue // the host said nothing then, of swap neither
		}
		if told && x.Host.Swapped > before+swappedMost {
			why = append(why, fmt.Sprintf("%s, %d tokens, run %d: %.1f GB were swapped out", x.Arm, x.Want, x.Run, float64(x.Host.Swapped-before)/1e9))
		} else if float64(x.Host.Available) < scarce*float64(r.Host.Memory) {
			why = append(why, fmt.Sprintf("%s, %d tokens, run %d: %.1f GB were left", x.Arm, x.Want, x.Run, float64(x.Host.Available)/1e9))
		}
		told, before, least = true, x.Host.Swapped, min(least, x.Host.Available)
	}
	if !told {
		return Check{}, false
	}
	if len(why) > 0 {
		return Check{"memory", LevelWarn, fmt.Sprintf("this host was short of memory in %d of %d requests; first %s", len(why), len(r.Rows), why[0])}, true
	}
	return Check{"memory", LevelOK, fmt.Sprintf("%.1f GB or more were left on this host, and no request swapped out more than %d MiB", float64(least)/1e9, swappedMost>>20)}, true
}

// heat looks at what the host said of it.
func (r *Report) heat() (Check, bool) {
	hits, all, first := r.tally(func(x *Row) (bool, string) {
		var why []string
		if x.Throttled > 0 {
			why = append(why, fmt.Sprintf("processors were slowed down %d times", x.Throttled))
		}
		if x.Host.Hot != "" {
			why = append(why, x.Host.Hot)
		}
		return len(why) > 0, strings.Join(why, ", ")
	}, Arms()...)
	if hits > 0 {
		return Check{"heat", LevelWarn, fmt.Sprintf("this host was slowed down during %d of %d requests; first %s", hits, all, first)}, true
	}
	return Check{"heat", LevelOK, "nothing slowed this host down, as far as it says"}, all > 0
}

func cachedText(x *Row) string {
	if x.Cached == nil {
		return "cached tokens not told"
	}
	return fmt.Sprintf("%d cached tokens", *x.Cached)
}
