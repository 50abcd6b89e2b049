package transport

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestRankSums(t *testing.T) {
	tests := []struct {
		xxh3, crc float64
		first     string
	}{
		{15e9, 6e9, sumXXH3},
		{5e9, 20e9, sumCRC},
		{10e9, 10e9, sumXXH3},
		{10e9, 12e9, sumXXH3}, // faster, but not by enough
		{10e9, 13e9, sumCRC},
		{0, 0, sumXXH3},
	}
	for _, tt := range tests {
		got := rankSums([]SumRate{{sumXXH3, tt.xxh3}, {sumCRC, tt.crc}})
		if len(got) != 2 || got[0].Name != tt.first || got[0].Name == got[1].Name {
			t.Errorf("rates %v and %v: %v first, want %s", tt.xxh3, tt.crc, got, tt.first)
		}
	}
}

func TestMeasureSums(t *testing.T) {
	start := time.Now()
	rates := MeasureSums()
	took := time.Since(start)
	var names []string
	for _, r := range rates {
		names = append(names, r.Name)
		if r.BytesPerSecond < 1e6 || r.BytesPerSecond > 1e12 {
			t.Errorf("%s: %.3g bytes a second", r.Name, r.BytesPerSecond)
		}
	}
	slices.Sort(names)
	if want := []string{sumCRC, sumXXH3}; !slices.Equal(names, want) {
		t.Errorf("measured %v, want %v", names, want)
	}
	if took > time.Second { // 1 ms on an idle machine
		t.Errorf("took %v", took)
	}
	t.Logf("%v in %v", rates, took)
	if got := SumsByRate(); len(got) != 2 || slices.Contains(got, SumNone) {
		t.Errorf("SumsByRate is %v", got)
	}
}

func BenchmarkSums(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 1 << 20} {
		p := make([]byte, size)
		for _, name := range []string{sumXXH3, sumCRC} {
			sum, err := SumByName(name)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					sum(p)
				}
			})
		}
	}
	b.Run("measure", func(b *testing.B) {
		for b.Loop() {
			MeasureSums()
		}
	})
}
