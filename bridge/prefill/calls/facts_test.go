package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pdlink/bridge/facts"
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
	long := json.RawMessage(`"` + strings.Repeat("x", facts.MaxSize) + `"`)
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

// wordy is an opinion of MaxModels models with as much about each as there may be.
func wordy(reason string) Opinion {
	o := Opinion{Build: "v1", Models: make(map[string]ModelOpinion)}
	for i := range MaxModels {
		m := ModelOpinion{Known: true, Refused: reason}
		for range maxFindings {
			m.Findings = append(m.Findings, reason)
		}
		o.Models[fmt.Sprintf("an-organization/a-model-%d", i)] = m
	}
	return o
}

// TestOpinionIsCutToFit: all models get an answer, and none is said to be without
// findings that has some.
func TestOpinionIsCutToFit(t *testing.T) {
	for name, reason := range map[string]string{
		"as long as may be": strings.Repeat("x", maxReason),
		"escaped":           strings.Repeat("<", maxReason),
		"of usual length":   strings.Repeat("x", 100),
	} {
		o := wordy(reason)
		b, err := o.Encode()
		if err != nil || len(b) > maxText {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
			continue
		}
		got, err := ParseOpinion(b)
		if err != nil || len(got.Models) != MaxModels {
			t.Errorf("%s: %d models, %v", name, len(got.Models), err)
		}
		for id, m := range got.Models {
			if !m.Known || len(m.Refused) < min(leastReason, len(reason)) || !strings.HasPrefix(reason, m.Refused) || len(m.Findings) == 0 || !strings.HasSuffix(m.Findings[len(m.Findings)-1], "more") {
				t.Errorf("%s: %s: %+v", name, id, m)
				break
			}
		}
	}
	few := Opinion{Models: map[string]ModelOpinion{"m": {Known: true, Findings: slices.Repeat([]string{"f"}, maxFindings)}}}
	if b, err := few.Encode(); err != nil || strings.Contains(string(b), "more") {
		t.Errorf("cut without need: %s, %v", b, err)
	}
	names := Opinion{Models: map[string]ModelOpinion{"m": {Known: true}}}
	for i := range MaxModels - 1 { // of a host that just fits
		names.Models[fmt.Sprintf("%0*d", 248, i)] = ModelOpinion{}
	}
	b, err := names.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseOpinion(b); err != nil || !got.Models["m"].Known {
		t.Errorf("%+v, %v", got, err)
	}
	for id := range names.Models {
		names.Models[id] = ModelOpinion{Known: true}
	}
	if _, err := names.Encode(); !errors.Is(err, ErrCall) {
		t.Errorf("names that do not fit: %v", err)
	}
}

// TestEncodeLeavesTheOpinion: it is the caller's, map and findings included.
func TestEncodeLeavesTheOpinion(t *testing.T) {
	said := func() Opinion {
		o := wordy("a\nb" + strings.Repeat("x", 2*maxReason))
		o.Build = "v\n1"
		return o
	}
	o := said()
	models := maps.Clone(o.Models)
	if _, err := o.Encode(); err != nil {
		t.Fatal(err)
	}
	if want := said(); !reflect.DeepEqual(o, want) || !reflect.DeepEqual(models, want.Models) {
		t.Error("the caller's opinion has changed")
	}
}
