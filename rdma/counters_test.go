package rdma

import (
	"errors"
	"maps"
	"reflect"
	"sync"
	"testing"
)

func TestCountersSince(t *testing.T) {
	before := Counters{"same": 5, "more": 7, "back": 9, "zero": 0}
	now := Counters{"same": 5, "more": 17, "back": 1, "zero": 1, "new": 3}
	got := now.Since(before)
	if want := (Counters{"more": 10, "zero": 1}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if text := got.String(); text != "10 more, 1 zero" {
		t.Errorf("%q", text)
	}
	if d := before.Since(before); d != nil || d.String() != "" {
		t.Errorf("%v went on from itself", d)
	}
	if d := Counters(nil).Since(before); d != nil {
		t.Errorf("%v from nothing", d)
	}
}

// meter is a host whose ports count as a test wants.
type meter struct {
	mu     sync.Mutex
	counts map[string]Counters
	broken bool
}

func (m *meter) read(device string, _ int) (Counters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return nil, errors.New("gone")
	}
	return maps.Clone(m.counts[device]), nil
}

func (m *meter) count(device, name string, by uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts[device] == nil {
		m.counts[device] = Counters{}
	}
	m.counts[device][name] += by
}

// TestPorts: what ports count between the beginning and the end, from the first use of
// those that came later.
func TestPorts(t *testing.T) {
	m := &meter{counts: map[string]Counters{"a": {"x": 100, "y": 1}, "b": {"x": 50}, "mute": nil}}
	p := &Ports{read: m.read}
	if got := p.Begin()(); got != nil {
		t.Errorf("%v of no port", got)
	}
	p.Use(Choice{Device: "a", Port: 1})
	m.count("a", "x", 1000) // before the beginning
	since := p.Begin()
	m.count("b", "x", 1000) // before its first use
	p.Use(Choice{Device: "b", Port: 2})
	p.Use(Choice{Device: "mute", Port: 1})
	p.Use(Choice{Device: "a", Port: 1}) // again: nothing new
	if got := since(); got != nil {
		t.Errorf("%v, and nothing was counted", got)
	}
	m.count("a", "y", 2)
	m.count("b", "x", 3)
	want := []PortCounters{{"a:1", Counters{"y": 2}}, {"b:2", Counters{"x": 3}}}
	if got := since(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	m.count("a", "y", 1)
	if got := since(); got[0].Counters["y"] != 3 {
		t.Errorf("a second reading gave %v", got)
	}
	want[0].Counters["y"], want[1].Counters["x"] = 3, 3
	want[0].Counters["x"] = 1000
	if got := p.BeginAtUse()(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v since the first use, want %v", got, want)
	}
	m.broken = true
	if got := since(); got != nil {
		t.Errorf("%v of ports that are gone", got)
	}
	p.Use(Choice{Device: "late", Port: 1}) // cannot be read now: nothing is told of it later
	m.broken = false
	m.count("late", "x", 9)
	if got := since(); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// TestPortsUnlocked: nobody waits for a lock while a driver is asked.
func TestPortsUnlocked(t *testing.T) {
	asked := 0
	p := &Ports{}
	p.read = func(string, int) (Counters, error) {
		asked++
		if !p.mu.TryLock() {
			t.Error("the lock is held")
		} else {
			p.mu.Unlock()
		}
		return Counters{"x": 1}, nil
	}
	p.Use(Choice{Device: "a", Port: 1})
	p.Begin()()
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

// TestPortsTogether: connections come and transfers begin at the same time.
func TestPortsTogether(t *testing.T) {
	m := &meter{counts: map[string]Counters{}}
	p := &Ports{read: m.read}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p.Use(Choice{Device: string(rune('a' + i%4)), Port: 1})
			since := p.Begin()
			m.count("a", "x", 1)
			since()
		})
	}
	wg.Wait()
	if len(p.list) != 4 {
		t.Errorf("%d ports, want 4", len(p.list))
	}
}
