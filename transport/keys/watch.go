package keys

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// look is what one look at the peers file saw.
type look struct {
	content []byte
	err     error
}

// blind says whether the look saw neither a file nor that it is not to be
// trusted.
func (l look) blind() bool {
	return l.err != nil && !errors.Is(l.err, ErrBadFile) && !errors.Is(l.err, ErrPermissions)
}

// same says whether two looks saw the same; errors are the same when they read
// the same.
func (l look) same(m look) bool {
	if l.err != nil || m.err != nil {
		return l.err != nil && m.err != nil && l.err.Error() == m.err.Error()
	}
	return bytes.Equal(l.content, m.content)
}

// peers is what the look means.
func (l look) peers(dir string) ([]Peer, error) {
	if l.err != nil {
		return nil, l.err
	}
	return parsePeers(filepath.Join(dir, PeersFile), l.content)
}

// revoked are the keys that the file says were taken out of it.
func (l look) revoked() map[PublicKey]string { return revokedIn(l.content) }

// watch follows the peers file of a directory. One goroutine uses it.
type watch struct {
	dir   string
	read  func(dir string) ([]byte, error)
	spare *os.File // a descriptor for the read when the process has no other

	used  look      // the peers are from it
	last  look      // the last that was not blind
	since time.Time // of the first blind look; zero: the last one was not
	told  time.Time // when it was said that nothing can be seen
}

// view is what one look means for the peers.
type view struct {
	changed bool // peers are the peers now
	peers   []Peer
	revoked map[PublicKey]string // keys that were peers, as the file says
	problem error                // to be told of, when it is not nil
}

// next looks again. A change must be seen twice: an editor may be in the middle of
// writing, and half a file must not end a connection.
func (w *watch) next(now time.Time) view {
	l := w.look()
	if l.blind() {
		return w.blind(l, now)
	}
	w.since = time.Time{}
	settled := l.same(w.last)
	w.last = l
	if !settled || l.same(w.used) {
		return view{}
	}
	w.used = l
	peers, err := l.peers(w.dir)
	return view{true, peers, l.revoked(), err}
}

// blind is next where nothing was seen. Whoever was revoked meanwhile is still
// connected, so that it may not last.
func (w *watch) blind(l look, now time.Time) (v view) {
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) >= blindLimit && !w.used.blind() {
		v.changed, w.used = true, l
		w.told = time.Time{}
	}
	if w.told.IsZero() || now.Sub(w.told) >= blindRepeat {
		w.told = now
		what := fmt.Sprintf("the peers stay as they are for %v at the most", blindLimit)
		if w.used.blind() {
			what = "nobody is a peer until it can be read"
		}
		v.problem = fmt.Errorf("%w: %s", l.err, what)
	}
	return v
}

// look reads the file, with the spare descriptor where there is no other. Another
// goroutine may take that in between; then the next look has to do.
func (w *watch) look() look {
	b, err := w.read(w.dir)
	if outOfFiles(err) && w.spare != nil {
		w.close()
		b, err = w.read(w.dir)
	}
	if w.spare == nil {
		w.spare, _ = os.Open(os.DevNull) // without it a read is as any other
	}
	return look{b, err}
}

// close gives the spare descriptor back.
func (w *watch) close() {
	if w.spare != nil {
		w.spare.Close() //nolint:errcheck // nothing was written
		w.spare = nil
	}
}
