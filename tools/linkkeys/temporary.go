package linkkeys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pdlink/transport/keys"
)

// The names that the two ends of Temporary have for each other.
const (
	temporaryDialler  = "dialler"
	temporaryListener = "listener"
)

// Temporary makes two directories of keys that know each other, for both ends of
// a measurement on one host: below one that only this user can read. The caller
// calls remove after the last use of either.
func Temporary() (dialler, listener string, remove func(), err error) {
	base, err := os.MkdirTemp("", "pdlink-keys-") // mode 0700
	if err != nil {
		return "", "", nil, fmt.Errorf("make temporary keys: %w", err)
	}
	remove = func() { os.RemoveAll(base) } //nolint:errcheck // the system's own clean-up takes what is left
	dialler, listener = filepath.Join(base, temporaryDialler), filepath.Join(base, temporaryListener)
	ctx := context.Background() // nobody else knows the directories: there is no wait
	d, err1 := keys.Init(ctx, dialler, false)
	l, err2 := keys.Init(ctx, listener, false)
	if err = errors.Join(err1, err2); err == nil {
		err = errors.Join(
			keys.AddPeer(ctx, dialler, keys.Peer{Name: temporaryListener, Key: l.Public()}),
			keys.AddPeer(ctx, listener, keys.Peer{Name: temporaryDialler, Key: d.Public()}))
	}
	if err != nil {
		remove()
		return "", "", nil, fmt.Errorf("make temporary keys: %w", err)
	}
	return dialler, listener, remove, nil
}
