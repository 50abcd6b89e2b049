//go:build !linux && !darwin

package flow

// Read says that this system does not tell.
func Read(int) (Counters, error) { return Counters{}, ErrUnknown }
