package transporttest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// recorder is a testing.TB that keeps failures to itself, so that a test can
// want them.
type recorder struct {
	testing.TB
	mu       sync.Mutex // guards what follows
	failures []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, s)
}

// said reports whether a failure contains the words, and all failures.
func (r *recorder) said(words string) (bool, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.failures, "\n")
	return len(r.failures) > 0 && strings.Contains(all, words), all
}

func (r *recorder) Error(args ...any)                 { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }
func (r *recorder) Fail()                             { r.note("fail") }
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
