package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
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
		return fmt.Errorf("%w: name %.70q: want at most %d letters, digits, '-', '_' and '.', a letter or digit first", ErrBadKey, name, maxName)
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
// that is there, name and key, is no error. Errors: ErrBadKey, ErrPeerExists, and
// those of LoadPeers.
func AddPeer(dir string, p Peer) error {
	if err := CheckName(p.Name); err != nil {
		return err
	}
	if p.Key == (PublicKey{}) {
		return fmt.Errorf("%w: peer %s has no key", ErrBadKey, p.Name)
	}
	return change(dir, func() error {
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
			case q.Name == p.Name:
				return fmt.Errorf("%w: %s is paired with another key, %s: run `pdlink keys revoke %s` first", ErrPeerExists, p.Name, q.Key.Short(), p.Name)
			case q.Key == p.Key:
				return fmt.Errorf("%w: the key %s is paired as %s", ErrPeerExists, p.Key.Short(), q.Name)
			}
		}
		if len(b) == 0 {
			b = []byte(peersHead)
		}
		if b[len(b)-1] != '\n' {
			b = append(b, '\n')
		}
		b = fmt.Appendf(b, "%s %v\n", p.Name, p.Key)
		if len(b) > maxPeers {
			return fmt.Errorf("%w: %s would have more than %d bytes", ErrBadFile, path, maxPeers)
		}
		return writeFile(path, b, true)
	})
}

// RemovePeer takes the peer with this name, or with this public key, out of the
// file of dir, and returns it. Other lines stay, also those that are wrong: it
// must be possible to revoke a peer whatever else is in the file. Errors:
// ErrUnknownPeer, ErrPermissions, what the file system said.
func RemovePeer(dir, nameOrKey string) (Peer, error) {
	var removed Peer
	err := change(dir, func() error {
		b, err := readPeers(dir)
		if err != nil {
			return err
		}
		var kept []byte
		found := false
		for line := range bytes.Lines(b) {
			p, _, err := parsePeer(line)
			if err == nil && (p.Name == nameOrKey || p.Key.String() == strings.ToLower(nameOrKey)) {
				removed, found = p, true
				continue
			}
			kept = append(kept, line...)
		}
		path := filepath.Join(dir, PeersFile)
		if !found {
			return fmt.Errorf("%w: %.80q is not in %s", ErrUnknownPeer, nameOrKey, path)
		}
		return writeFile(path, kept, true)
	})
	return removed, err
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
// ErrBadFile, what is wrong with the other lines. A line that is wrong is nobody:
// it takes nothing from the others.
func parsePeers(path string, b []byte) ([]Peer, error) {
	var peers []Peer
	var bad []error
	names, owners := map[string]bool{}, map[PublicKey]string{}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		p, some, err := parsePeer(line)
		switch {
		case !some:
			continue
		case err != nil:
		case names[p.Name]:
			err = fmt.Errorf("the name %s is there twice", p.Name)
		case owners[p.Key] != "":
			err = fmt.Errorf("%s has the key of %s", p.Name, owners[p.Key])
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%w: %s, line %d: %w", ErrBadFile, path, n, err))
			continue
		}
		names[p.Name], owners[p.Key] = true, p.Name
		peers = append(peers, p)
	}
	return peers, errors.Join(bad...)
}

// parsePeer reads one line; some is false when there is nothing but a comment.
func parsePeer(line []byte) (p Peer, some bool, err error) {
	text, _, _ := strings.Cut(string(line), "#")
	fields := strings.Fields(text)
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
