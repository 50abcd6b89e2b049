package keys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Peer is a host that this one talks to, by its own name for it.
type Peer struct {
	Name string // 1 to 63 of a to z, A to Z, 0 to 9, "-", "_", "."; begins with a letter or digit
	Key  PublicKey
}

// peersHead begins a new peers file.
const peersHead = `# Hosts that this one talks to, by pdlink: NAME PUBLIC-KEY, one a line. A connection of a host that
# is taken out ends within seconds. Names are this host's own choice.
`

// revokedNote begins the comment that stays in the peers file of a line that was taken
// out, so that nobody is offered to pair with its key again.
const revokedNote = "# revoked: "

// revokedIn are the keys that such comments name, with the names that they had.
func revokedIn(b []byte) map[PublicKey]string {
	gone := map[PublicKey]string{}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(revokedNote)); ok {
			if p, some, err := parsePeer(rest); some && err == nil {
				gone[p.Key] = p.Name
			}
		}
	}
	return gone
}

// withoutNote is a file's content without the comments that name a key as revoked.
func withoutNote(b []byte, key PublicKey) []byte {
	if revokedIn(b)[key] == "" {
		return b
	}
	var kept []byte
	for line := range bytes.Lines(b) {
		if _, noted := revokedIn(line)[key]; !noted {
			kept = append(kept, line...)
		}
	}
	return kept
}

// bounded is a file's content without the oldest notes of revoked keys where there are
// too many of them, or no room for them. They are in the order in which the keys were
// revoked.
func bounded(b []byte) []byte {
	notes, size := 0, len(b)
	for line := range bytes.Lines(b) {
		notes += len(revokedIn(line))
	}
	if notes <= maxRevoked && size <= maxPeers {
		return b
	}
	var kept []byte
	for line := range bytes.Lines(b) {
		if (notes > maxRevoked || size > maxPeers) && len(revokedIn(line)) > 0 {
			notes, size = notes-1, size-len(line)
			continue
		}
		kept = append(kept, line...)
	}
	return kept
}

// CheckName says whether a peer may have this name. The error Is ErrBadKey.
func CheckName(name string) error {
	ok := len(name) > 0 && len(name) <= maxName
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && strings.IndexByte("-_.", c) >= 0:
		default:
			ok = false
		}
	}
	if !ok {
		return fmt.Errorf("%w: name %.20q: want at most %d letters, digits, '-', '_' and '.', a letter or digit first", ErrBadKey, name, maxName)
	}
	if strings.HasPrefix(strings.ToLower(name), textPrefix) {
		return fmt.Errorf("%w: %.20q is no name: it looks like a key", ErrBadKey, name)
	}
	return nil
}

// LoadPeers reads the peers of dir, in the file's order; none when there is no
// file. Errors: ErrPermissions, ErrBadFile with every line that is wrong, what the
// file system said.
func LoadPeers(dir string) ([]Peer, error) {
	b, err := readPeers(dir)
	if err != nil {
		return nil, err
	}
	peers, bad := parsePeers(filepath.Join(dir, PeersFile), b)
	if bad != nil {
		return nil, bad
	}
	return peers, nil
}

// AddPeer adds a peer to the file of dir. Comments and other lines stay. A peer
// that is there, name and key, is no error. The context bounds the wait for another
// change of the directory. Errors: ErrBadKey, ErrPeerExists, ErrLocked, the
// context's, and those of LoadPeers.
func AddPeer(ctx context.Context, dir string, p Peer) error {
	if err := CheckName(p.Name); err != nil {
		return err
	}
	if p.Key == (PublicKey{}) {
		return fmt.Errorf("%w: peer %s has no key", ErrBadKey, p.Name)
	}
	return change(ctx, dir, func() error {
		b, err := readPeers(dir)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, PeersFile)
		peers, err := parsePeers(path, b)
		if err != nil {
			return err
		}
		for _, q := range peers {
			switch {
			case q == p:
				return nil
			case q.Name == p.Name, q.Key == p.Key:
				return &TakenError{Wanted: p, Taken: q}
			}
		}
		b = withoutNote(b, p.Key)
		if len(b) == 0 {
			b = []byte(peersHead)
		}
		if b[len(b)-1] != '\n' {
			b = append(b, '\n')
		}
		b = bounded(fmt.Appendf(b, "%s %v\n", p.Name, p.Key))
		if len(b) > maxPeers {
			return fmt.Errorf("%w: %s would have more than %d bytes", ErrBadFile, path, maxPeers)
		}
		return writeFile(path, b, true)
	})
}

// RemovePeer takes the peer with this name, or with this public key, out of the
// file of dir: every line that has its key, under whatever name, and right or
// wrong otherwise. A comment stays that says which key it was, of so many keys as were
// revoked last. It returns the peers
// that it took out, at least one, in the file's order. Other lines stay, also those
// that are wrong: it must be possible to revoke a peer whatever else is in the file.
// The context bounds the wait for another change of the directory. Errors: ErrUnknownPeer, ErrPermissions,
// ErrLocked, the context's, what the file system said.
func RemovePeer(ctx context.Context, dir, nameOrKey string) (removed []Peer, err error) {
	err = change(ctx, dir, func() error {
		b, err := readPeers(dir)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, PeersFile)
		keys := keysOf(b, nameOrKey)
		if len(keys) == 0 {
			return fmt.Errorf("%w: %.20q is not in %s", ErrUnknownPeer, nameOrKey, path)
		}
		for key := range keys {
			b = withoutNote(b, key)
		}
		var kept, notes []byte
		for line := range bytes.Lines(b) {
			p, _, err := parsePeer(line)
			switch {
			case err != nil && mentions(line, keys): // it would be a peer again once mended
			case err == nil && keys[p.Key]:
				if !slices.ContainsFunc(removed, func(q Peer) bool { return q.Key == p.Key }) {
					notes = fmt.Appendf(notes, "%s%s %v\n", revokedNote, p.Name, p.Key)
				}
				removed = append(removed, p)
			default:
				kept = append(kept, line...)
			}
		}
		if n := len(kept); n > 0 && kept[n-1] != '\n' {
			kept = append(kept, '\n')
		}
		return writeFile(path, bounded(append(kept, notes...)), true)
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

// keysOf are the keys of the peers in a file's content that have this name, or
// this key.
func keysOf(b []byte, nameOrKey string) map[PublicKey]bool {
	wanted, err := ParsePublic(nameOrKey)
	isKey := err == nil
	found := map[PublicKey]bool{}
	for line := range bytes.Lines(b) {
		p, some, err := parsePeer(line)
		if some && err == nil && (p.Name == nameOrKey || isKey && p.Key == wanted) {
			found[p.Key] = true
		}
	}
	return found
}

// mentions says whether a line that is wrong has one of the keys all the same.
func mentions(line []byte, keys map[PublicKey]bool) bool {
	for _, word := range words(line) {
		if k, err := ParsePublic(word); err == nil && keys[k] {
			return true
		}
	}
	return false
}

// readPeers returns the content of the peers file; nothing when there is none.
func readPeers(dir string) ([]byte, error) {
	b, err := readFile(filepath.Join(dir, PeersFile), maxPeers, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// parsePeers returns the peers of a file's content and, as one error that Is
// ErrBadFile, what is wrong with the first of the other lines. A line that is wrong
// is nobody: it takes nothing from the others. A name or a key that several lines
// have is nobody's: which of them was meant cannot be known, and when one is taken
// out the other must not be what keeps the host connected.
func parsePeers(path string, b []byte) ([]Peer, error) {
	names, owners := map[string]int{}, map[PublicKey]int{}
	for line := range bytes.Lines(b) {
		if p, some, err := parsePeer(line); some && err == nil {
			names[p.Name]++
			owners[p.Key]++
		}
	}
	var peers []Peer
	bad := badLines{path: path}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		p, some, err := parsePeer(line)
		switch {
		case !some:
			continue
		case err != nil:
		case names[p.Name] > 1:
			err = fmt.Errorf("the name %s is there %d times: none of them counts", p.Name, names[p.Name])
		case owners[p.Key] > 1:
			err = fmt.Errorf("%s has a key that is there %d times, %s: none of them counts", p.Name, owners[p.Key], p.Key.Short())
		}
		if err != nil {
			bad.add(n, err)
			continue
		}
		peers = append(peers, p)
	}
	return peers, bad.err()
}

// badLines are the lines of a file that are wrong. It keeps a few and counts the
// rest.
type badLines struct {
	path string
	told []error
	more int
}

func (b *badLines) add(n int, why error) {
	if len(b.told) == maxTold {
		b.more++
		return
	}
	b.told = append(b.told, fmt.Errorf("%w: %s, line %d: %w", ErrBadFile, b.path, n, why))
}

// err is nil where no line is wrong.
func (b *badLines) err() error {
	if b.more > 0 {
		return errors.Join(append(b.told, fmt.Errorf("%w: %s: and %d more lines", ErrBadFile, b.path, b.more))...)
	}
	return errors.Join(b.told...)
}

// words are those of a line without its comment.
func words(line []byte) []string {
	text, _, _ := strings.Cut(string(line), "#")
	return strings.Fields(text)
}

// parsePeer reads one line; some is false when there is nothing but a comment.
func parsePeer(line []byte) (p Peer, some bool, err error) {
	fields := words(line)
	if len(fields) == 0 {
		return Peer{}, false, nil
	}
	if len(fields) != 2 {
		return Peer{}, true, fmt.Errorf("%w: want a name and a public key, got %d words", ErrBadKey, len(fields))
	}
	if err := CheckName(fields[0]); err != nil {
		return Peer{}, true, err
	}
	key, err := ParsePublic(fields[1])
	if err != nil {
		return Peer{}, true, err
	}
	return Peer{fields[0], key}, true, nil
}
