package omlx

import "testing"

// flash is the real geometry of DeepSeek-V4-Flash.
func flash(format string, pool int) Spec {
	s := Spec{Kind: KindDSV4, Model: "DeepSeek-V4-Flash", BlockTokens: 2048, Format: format, PoolState: pool,
		HeadDim: 512, IndexHeadDim: 128, Window: 128, Ratios: make([]int, 43)}
	for i := 2; i < 43; i++ {
		s.Ratios[i] = 4
		if i%2 == 1 {
			s.Ratios[i] = 128
		}
	}
	return s
}

func TestFlashSizes(t *testing.T) {
	for _, c := range []struct {
		name               string
		spec               Spec
		k                  int
		tensors, meta      int
		wire               int
		header, data, file int64
	}{
		{"delta 5 embedded", flash("4", 0), 0, 458, 426, 251, 64968, 20158236, 20223212},
		{"delta 5 split", flash("5", 0), 0, 458, 426, 251, 64992, 20158236, 20223236},
		{"delta 3 embedded", flash("4", 3), 0, 334, 386, 167, 52056, 19727996, 19780060},
		{"cumulative 3", flash("3", 3), 0, 272, 385, 105, 43920, 19727004, 19770932},
		{"cumulative 3 at 79872", flash("3", 3), 38, 272, 385, 105, 44784, 555156124, 555200916},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.spec.Format == "3" {
				c.spec.Options.ClassNames = On
			}
			l, err := NewLayout(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			h, err := l.Header(c.k, Hash{}, "1795973845.4564774")
			if err != nil {
				t.Fatal(err)
			}
			if n := len(l.Tensors(c.k)); n != c.tensors {
				t.Errorf("%d tensors, want %d", n, c.tensors)
			}
			if n := len(l.metadata(c.k, Hash{}, "1.0")); n != c.meta {
				t.Errorf("%d metadata keys, want %d", n, c.meta)
			}
			if n := len(l.wire) + ranges(l); n != c.wire {
				t.Errorf("%d real tensors, want %d", n, c.wire)
			}
			if n := int64(len(h)) - 8; n != c.header {
				t.Errorf("header of %d bytes, want %d", n, c.header)
			}
			if n := l.DataLen(c.k); n != c.data || n+int64(len(h)) != c.file {
				t.Errorf("data %d, file %d; want %d, %d", n, n+int64(len(h)), c.data, c.file)
			}
		})
	}
}

// ranges counts the row ranges, which are data of a file and not of the wire.
func ranges(l *Layout) int {
	n := 0
	for i := range l.slots {
		if l.slots[i].mark == markRange {
			n++
		}
	}
	return n
}
