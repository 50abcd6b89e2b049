package front

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// named is an engine that names what it reads, and may refuse.
type named struct {
	name    string
	models  []string
	refused string
}

func (n named) Name() string                                 { return n.name }
func (n named) Serves(string) bool                           { return false }
func (n named) Prefill(context.Context, Job) (Result, error) { return Result{}, errors.ErrUnsupported }
func (n named) Reads() []string                              { return n.models }
func (n named) Refused(string) string                        { return n.refused }

func TestWhyNoEngineIsThere(t *testing.T) {
	for _, c := range []struct {
		name    string
		engines []Engine
		want    []string
	}{
		{"none", nil, nil},
		{"resting", []Engine{named{"spark", []string{"m"}, ""}}, nil},
		{"another id", []Engine{named{"spark", []string{"a", "b"}, ""}}, []string{"spark reads prompts for a, b, not for m", "--model m="}},
		{"refused", []Engine{named{"spark", []string{"m"}, "rope"}}, []string{"spark is refused, its model is another: rope"}},
		{"both", []Engine{named{"one", []string{"m"}, "rope"}, named{"two", []string{"a"}, ""}}, []string{"one is refused", "; two reads prompts for a, not for m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := newEngines(c.engines, 1).take(t.Context(), "m", nil)
			if !errors.Is(err, ErrNoEngine) {
				t.Fatalf("%v, want ErrNoEngine", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			if len(c.want) == 0 && err != ErrNoEngine { //nolint:errorlint // nothing is added to it
				t.Errorf("%q, want no more than %q", err, ErrNoEngine)
			}
		})
	}
}

func TestReasonOfSeveralErrorsIsOneLine(t *testing.T) {
	r := Record{ID: "x", Outcome: Declined, Reason: errors.Join(errors.New("one"), errors.New("two")).Error()}
	if got, want := r.String(), "declined; one; two; id=x"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
