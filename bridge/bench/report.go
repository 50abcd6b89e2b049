package bench

import (
	"slices"
	"time"
)

// SchemaVersion changes when a field of Report, or of what is in it, changes its meaning.
const SchemaVersion = 1

// Report is all that was measured. Schema describes its JSON.
type Report struct {
	Schema  int       `json:"schema"` // SchemaVersion
	Version string    `json:"version,omitempty"`
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
	Whole   bool      `json:"whole"` // false: it was interrupted
	OK      bool      `json:"ok"`    // whole, and no check failed

	Seed   uint64   `json:"seed"`
	API    API      `json:"api"`
	Answer int      `json:"answer_tokens"` // at most
	Runs   int      `json:"runs"`
	Model  string   `json:"model,omitempty"` // the decoder's id
	Reads  string   `json:"engine_model,omitempty"`
	Front  string   `json:"front,omitempty"` // URLs, without passwords
	Native string   `json:"native,omitempty"`
	Engine string   `json:"engine,omitempty"`
	IDs    string   `json:"ids_of,omitempty"` // who knows the ids: plug-in, engine
	Finds  bool     `json:"finds_markers"`    // the model found one in a short prompt, so that it can be held to it
	Host   Host     `json:"host"`
	Lacks  []string `json:"missing,omitempty"` // what was not measured, and why

	Lengths []Length `json:"lengths"`
	Checks  []Check  `json:"checks"`
	Rows    []Row    `json:"rows"` // every request, in order
}

// Row is what came of one request. A number that is zero was not measured.
type Row struct {
	Arm     Arm    `json:"arm"`
	Want    int    `json:"want_tokens"` // the length that was asked for
	Run     int    `json:"run"`         // from 1 on
	Counted bool   `json:"counted"`     // false: it warmed up
	Seed    uint64 `json:"seed"`        // of its prompt

	Tokens  int     `json:"tokens,omitempty"`            // of the prompt, or the engine's ids
	First   float64 `json:"ttft_seconds,omitempty"`      // from the connection to the first text
	Total   float64 `json:"total_seconds,omitempty"`     // to the end of the answer
	Said    int     `json:"generated,omitempty"`         // tokens of the answer
	Rate    float64 `json:"decode_per_second,omitempty"` // tokens behind the first one, over their time
	Cached  *int    `json:"cached_tokens"`               // as the answer says; null: it does not
	IDs     string  `json:"ids_of,omitempty"`            // of the engine's row
	Verdict string  `json:"verdict,omitempty"`           // the header X-PDLink

	// What the front's record of the request says, where it can be had.
	Outcome  string  `json:"outcome,omitempty"` // the verdict's first word
	Reason   string  `json:"reason,omitempty"`
	Promised int     `json:"promised_tokens,omitempty"` // that the decoder should find
	Bytes    uint64  `json:"bytes,omitempty"`           // that travelled
	Sealed   bool    `json:"sealed,omitempty"`
	Plan     float64 `json:"plan_seconds,omitempty"`
	Bridge   float64 `json:"bridge_seconds,omitempty"` // queue, prefill, adoption
	Adopt    float64 `json:"adopt_seconds,omitempty"`

	// Of a bridged row, against the same round's others.
	Reading  float64  `json:"engine_seconds,omitempty"`   // the engine's on the same ids
	Overhead *float64 `json:"overhead_seconds,omitempty"` // First minus that; absent: not measured
	Alone    float64  `json:"native_seconds,omitempty"`   // the native row's First
	Pair     float64  `json:"rate_ratio,omitempty"`       // Rate over the native row's

	Marker    Marker `json:"marker,omitempty"`
	Throttled uint64 `json:"throttled,omitempty"` // times that the host's processors were slowed by heat meanwhile
	Host      Sample `json:"host"`                // after the request
	Error     string `json:"error,omitempty"`     // empty: it was answered to its end
	Unfit     string `json:"unfit,omitempty"`     // why its figures are in no median, once all was measured; empty: they are
}

// Marker is whether an answer named the marker.
type Marker string

// What became of markers.
const (
	MarkerFound   Marker = "found"
	MarkerMissing Marker = "missing"
)

// Length is the medians of a length of prompts, over the rows that are not Unfit.
type Length struct {
	Want     int             `json:"want_tokens"`
	Tokens   int             `json:"tokens"` // of the longest prompt
	Arms     map[Arm]Figures `json:"arms"`
	Overhead *Spread         `json:"overhead_seconds,omitempty"`
	Sooner   float64         `json:"sooner,omitempty"`       // native time to the first token over bridged
	Rate     float64         `json:"rate_ratio,omitempty"`   // bridged decode rate over native, of the medians
	Pairs    *Spread         `json:"rate_pairs,omitempty"`   // the same of each round
	Within   int             `json:"pairs_within,omitempty"` // rounds in which bridged decoding was no more than 2 % slower
}

// Figures is the figures of an arm at a length.
type Figures struct {
	First *Spread `json:"ttft_seconds,omitempty"` // the engine's: of its whole answer
	Total *Spread `json:"total_seconds,omitempty"`
	Rate  *Spread `json:"decode_per_second,omitempty"`
}

// Spread is a median and how far its values were apart.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

// spreadOf is nil without values.
func spreadOf(values []float64) *Spread {
	n := len(values)
	if n == 0 {
		return nil
	}
	v := slices.Sorted(slices.Values(values))
	return &Spread{n, (v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

// outcomeBridged is the first word of the verdict on a request whose blocks are all there.
const outcomeBridged = "complete"

// lengths are the medians of rows.
func lengths(rows []Row) []Length {
	by := map[int][]Row{}
	for i := range rows {
		if rows[i].Counted {
			by[rows[i].Want] = append(by[rows[i].Want], rows[i])
		}
	}
	wants := make([]int, 0, len(by))
	for want := range by {
		wants = append(wants, want)
	}
	slices.Sort(wants)
	out := make([]Length, 0, len(wants))
	for _, want := range wants {
		out = append(out, lengthOf(want, by[want]))
	}
	return out
}

func lengthOf(want int, rows []Row) Length {
	l := Length{Want: want, Arms: map[Arm]Figures{}}
	first, total, rate := map[Arm][]float64{}, map[Arm][]float64{}, map[Arm][]float64{}
	var over, pairs []float64
	put := func(to map[Arm][]float64, arm Arm, v float64) {
		if v > 0 {
			to[arm] = append(to[arm], v)
		}
	}
	for i := range rows {
		r := &rows[i]
		if !r.good() {
			continue
		}
		l.Tokens = max(l.Tokens, r.Tokens)
		if r.Arm == Engine {
			put(first, Engine, r.Total)
		} else {
			put(first, r.Arm, r.First)
			put(rate, r.Arm, r.Rate)
		}
		put(total, r.Arm, r.Total)
		if r.Overhead != nil {
			over = append(over, *r.Overhead)
		}
		if r.Pair > 0 {
			if pairs = append(pairs, r.Pair); r.Pair >= 1-slower {
				l.Within++
			}
		}
	}
	for _, arm := range Arms() {
		if a := (Figures{spreadOf(first[arm]), spreadOf(total[arm]), spreadOf(rate[arm])}); a != (Figures{}) {
			l.Arms[arm] = a
		}
	}
	l.Overhead, l.Pairs = spreadOf(over), spreadOf(pairs)
	n, b := l.Arms[Native], l.Arms[Bridged]
	if n.First != nil && b.First != nil {
		l.Sooner = n.First.Median / b.First.Median
	}
	if n.Rate != nil && b.Rate != nil {
		l.Rate = b.Rate.Median / n.Rate.Median
	}
	return l
}
