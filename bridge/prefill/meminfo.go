package prefill

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// memGauge watches the host's free memory. It may be used concurrently.
type memGauge struct {
	path  string
	floor int64 // bytes; below 1: nothing is watched

	mu   sync.Mutex // guards the fields below
	at   time.Time
	last bool
}

// low reports whether less is free than the floor. A number that cannot be read
// says no: the floor protects, it does not stop the work.
func (g *memGauge) low() bool {
	if g.floor < 1 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.at) >= memInfoAge {
		free, err := memAvailable(g.path)
		g.at, g.last = now, err == nil && free < g.floor
	}
	return g.last
}

// memAvailable reads the kernel's estimate of what can be had without swapping,
// in bytes. On machines whose GPU shares the memory it counts for both.
func memAvailable(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxMemInfo))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		number, ok := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		kb, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if !ok || err != nil || kb < 0 || kb > 1<<50 {
			return 0, fmt.Errorf("%s: MemAvailable is %q", path, rest)
		}
		return kb << 10, nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return 0, fmt.Errorf("%s has no MemAvailable", path)
}
