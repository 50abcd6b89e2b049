package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestHostFacts: what a host says of its model travels as it is, within its limit, and
// may be left out.
func TestHostFacts(t *testing.T) {
	doc := json.RawMessage(`{"version":1,"kind":"kv"}`)
	b, err := Host{Models: []string{"m"}, Facts: doc}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"version":1,"name":"","models":["m"],"facts":{"version":1,"kind":"kv"}}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	if h, err := ParseHost(b); err != nil || !bytes.Equal(h.Facts, doc) {
		t.Errorf("%+v, %v", h, err)
	}
	if b, err = (Host{Models: []string{"m"}}).Encode(); err != nil || strings.Contains(string(b), "facts") {
		t.Errorf("%s, %v", b, err)
	}
	long := json.RawMessage(`"` + strings.Repeat("x", maxFacts) + `"`)
	if _, err := (Host{Facts: long}).Encode(); !errors.Is(err, ErrCall) {
		t.Errorf("too long: %v", err)
	}
	if _, err := ParseHost([]byte(`{"version":1,"facts":` + string(long) + `}`)); !errors.Is(err, ErrCall) {
		t.Errorf("too long: %v", err)
	}
}

// TestOpinion travels within its limits.
func TestOpinion(t *testing.T) {
	long := strings.Repeat("x", 2*maxReason)
	o := Opinion{Millis: 1790000000000, Models: map[string]ModelOpinion{
		"m": {Known: true, Refused: "rope\n" + long, Findings: make([]string, 2*maxFindings)}, "n": {},
	}}
	b, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseOpinion(b)
	if err != nil {
		t.Fatal(err)
	}
	m := got.Models["m"]
	if got.Time().UnixMilli() != 1790000000000 || !m.Known || len(m.Refused) != maxReason || !strings.HasPrefix(m.Refused, "rope?x") || len(m.Findings) != maxFindings || got.Models["n"].Known {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"[]", `{"version":2}`, `{"version":1,"models":{"` + strings.Repeat("x", maxName+1) + `":{}}}`} {
		if _, err := ParseOpinion([]byte(bad)); !errors.Is(err, ErrCall) {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
	many := Opinion{Models: map[string]ModelOpinion{}}
	for i := range MaxModels + 1 {
		many.Models[strings.Repeat("m", i)] = ModelOpinion{}
	}
	if _, err := many.Encode(); !errors.Is(err, ErrCall) {
		t.Errorf("too many: %v", err)
	}
}
