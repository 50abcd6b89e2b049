//go:build !linux

package flow

// Watcher watches nothing.
type Watcher struct{}

// Watch says that this system has no such programs.
func Watch(WatchOptions) (*Watcher, error) { return nil, ErrUnsupported }

// Report is empty.
func (*Watcher) Report() Report { return Report{} }

// Close does nothing.
func (*Watcher) Close() error { return nil }
