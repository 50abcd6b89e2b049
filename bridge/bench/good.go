package bench

import "slices"

// flaw is why a row's figures are not those of what its arm is to show; "": they are. Of
// every row the answer has to be a success of HTTP that came to its end. Then a
//
//   - native row was answered by no front, and cold, as far as the answer says;
//   - bridged row's verdict is complete, where any bridged answer has one, and the decoder
//     found as many cached tokens as were promised, as far as the answer says;
//   - engine row was cold, likewise;
//   - warm row was warm, and found what was promised, likewise.
//
// finds says that every native answer to prompts of the length named the marker: then a
// bridged or warm one does so, too. tells says that the front sends verdicts.
func (r *Row) flaw(finds, tells bool) string {
	cached := func(of func(int) bool) bool { return r.Cached != nil && of(*r.Cached) }
	switch through := r.Arm == Bridged || r.Arm == Warm; {
	case r.Error != "":
		return "it failed"
	case r.Arm == Native && r.Verdict != "":
		return "a front answered it"
	case (r.Arm == Native || r.Arm == Engine) && cached(func(n int) bool { return float64(n) > coldMost*float64(r.Tokens) }):
		return "it was not cold"
	case r.Arm == Bridged && r.Outcome != outcomeBridged && (r.Outcome != "" || r.Verdict != ""):
		return "it was not wholly bridged"
	case r.Arm == Bridged && r.Verdict == "" && tells:
		return "it has no verdict, which others have"
	case through && r.Promised > 0 && cached(func(n int) bool { return n < r.Promised }):
		return "fewer tokens were cached than promised"
	case r.Arm == Warm && cached(func(n int) bool { return float64(n) < warmMost*float64(r.Tokens) }):
		return "it was not warm"
	case through && finds && r.Marker == MarkerMissing:
		return "it does not name the marker, which native answers do"
	}
	return ""
}

// judge finds the rows whose figures are in no median.
func (r *Report) judge() {
	tells := r.tells()
	for i := range r.Rows {
		x := &r.Rows[i]
		natives := slices.ContainsFunc(r.Rows, func(y Row) bool { return y.alike(x) && y.Marker == MarkerFound })
		lost := slices.ContainsFunc(r.Rows, func(y Row) bool { return y.alike(x) && y.Marker == MarkerMissing })
		if x.Unfit = x.flaw(natives && !lost, tells); x.Unfit == "" && !x.Counted {
			x.Unfit = "it warmed up"
		}
	}
}

// tells reports that an answered bridged row has a verdict: what is asked is a front of pdlink.
func (r *Report) tells() bool {
	return slices.ContainsFunc(r.Rows, func(x Row) bool { return x.Arm == Bridged && x.Error == "" && x.Verdict != "" })
}

// alike reports a native row that counts, of x's length.
func (r *Row) alike(x *Row) bool { return r.Arm == Native && r.Counted && r.Want == x.Want }

// good reports that a row's figures are in the medians, of a report that was judged.
func (r *Row) good() bool { return r.Counted && r.Unfit == "" }
