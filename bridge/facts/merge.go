package facts

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
)

// ErrWorkers is returned by Merge for workers that have not loaded the same model.
var ErrWorkers = errors.New("facts: workers of one engine have loaded different models")

// Merge puts together what the workers of one engine tell: each has its layers
// only, and all the same model. Nil for none. The error Is ErrWorkers.
func Merge(all []*Facts) (*Facts, error) {
	if len(all) == 0 {
		return nil, nil
	}
	out := Facts{Version: Version}
	for _, f := range all {
		if err := out.add(f); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// add takes what another worker tells.
func (f *Facts) add(o *Facts) error {
	for _, x := range []struct {
		name string
		a, b any
	}{
		{"kind", &f.Kind, &o.Kind}, {"dtype", &f.DType, &o.DType}, {"layers", &f.Layers, &o.Layers}, {"hidden", &f.Hidden, &o.Hidden},
		{"vocab", &f.Vocab, &o.Vocab}, {"heads", &f.Heads, &o.Heads}, {"kv_heads", &f.KVHeads, &o.KVHeads}, {"head_dim", &f.HeadDim, &o.HeadDim},
		{"window", &f.Window, &o.Window}, {"ratios", &f.Ratios, &o.Ratios}, {"eps", &f.Eps, &o.Eps}, {"text", &f.Text, &o.Text},
		{"template", &f.Template, &o.Template}, {"projection", &f.Projection, &o.Projection},
	} {
		a, b := reflect.ValueOf(x.a).Elem(), reflect.ValueOf(x.b).Elem()
		switch {
		case b.IsZero():
		case a.IsZero():
			a.Set(b)
		case !reflect.DeepEqual(a.Interface(), b.Interface()):
			return fmt.Errorf("%w: %s is %v at one and %v at another", ErrWorkers, x.name, a, b)
		}
	}
	if len(o.Unknown) > 0 {
		out := maps.Clone(o.Unknown)
		maps.Copy(out, f.Unknown)
		f.Unknown = out
	}
	return errors.Join(join("rope of layer", &f.Rope, o.Rope), join("tensor", &f.Tensors, o.Tensors))
}

// join puts two maps together whose common entries must be equal.
func join[V any](what string, into *map[string]V, from map[string]V) error {
	if len(from) == 0 {
		return nil
	}
	out := maps.Clone(*into)
	if out == nil {
		out = make(map[string]V, len(from))
	}
	for name, v := range from {
		if was, there := out[name]; there && !reflect.DeepEqual(was, v) {
			return fmt.Errorf("%w: %s %s", ErrWorkers, what, name)
		}
		out[name] = v
	}
	*into = out
	return nil
}
