package keys_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/transport/keys"
)

// numbered is a key that has a number.
func numbered(n int) (k keys.PublicKey) {
	binary.BigEndian.PutUint32(k[:], uint32(n)+1)
	return k
}

// notesOf are the names in the notes of revoked keys of dir's peers file, in its order,
// and the bytes of the file.
func notesOf(t *testing.T, dir string) (names []string, content string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, keys.PeersFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "# revoked: "); ok {
			names = append(names, strings.Fields(rest)[0])
		}
	}
	return names, string(b)
}

// TestNotesOfRevokedKeysAreBounded: the newest stay, and what people wrote does.
func TestNotesOfRevokedKeysAreBounded(t *testing.T) {
	const kept = 100
	dir := t.TempDir()
	file := "# mine\n"
	for i := range 2 * kept {
		file += fmt.Sprintf("# revoked: h%d %v\n", i, numbered(i))
	}
	file += fmt.Sprintf("last %v\nother %v\n", numbered(1000), numbered(1001))
	writePeers(t, dir, file)
	if _, err := keys.RemovePeer(t.Context(), dir, "last"); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range kept - 1 {
		want = append(want, fmt.Sprintf("h%d", kept+1+i))
	}
	want = append(want, "last")
	names, content := notesOf(t, dir)
	if !slices.Equal(names, want) || !strings.HasPrefix(content, "# mine\n# revoked: h101 ") || !strings.Contains(content, "\nother ") {
		t.Errorf("%d notes, %v to %v", len(names), names[0], names[len(names)-1])
	}
	// A host that comes and goes has one.
	for range 3 {
		if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "again", Key: numbered(150)}); err != nil {
			t.Fatal(err)
		}
		if _, err := keys.RemovePeer(t.Context(), dir, "again"); err != nil {
			t.Fatal(err)
		}
	}
	// One that was put in by hand and has a note already, too.
	_, content = notesOf(t, dir)
	writePeers(t, dir, content+fmt.Sprintf("by-hand %v\n", numbered(151)))
	if _, err := keys.RemovePeer(t.Context(), dir, "by-hand"); err != nil {
		t.Fatal(err)
	}
	names, content = notesOf(t, dir)
	if len(names) != kept || !slices.Equal(names[kept-3:], []string{"last", "again", "by-hand"}) {
		t.Errorf("%d notes, the last %v", len(names), names[len(names)-3:])
	}
	for _, n := range []int{150, 151} {
		if c := strings.Count(content, numbered(n).String()); c != 1 {
			t.Errorf("key %d is there %d times", n, c)
		}
	}
}

// TestNotesMakeRoomForPeers: a file that is full of other things keeps no notes, and
// takes a peer while it has some.
func TestNotesMakeRoomForPeers(t *testing.T) {
	const most = 1 << 20
	note := fmt.Sprintf("# revoked: h %v\n", numbered(1))
	fill := strings.Repeat("# "+strings.Repeat("x", 61)+"\n", most/64)
	dir := t.TempDir()
	writePeers(t, dir, fill[:most-len(note)-1]+"\n"+note) // to the last byte
	if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "a", Key: numbered(2)}); err != nil {
		t.Fatal(err)
	}
	if names, content := notesOf(t, dir); len(names) != 0 || len(content) > most || !strings.HasSuffix(content, "\na "+numbered(2).String()+"\n") {
		t.Errorf("notes %v in %d bytes", names, len(content))
	}
	if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
		t.Fatal(err)
	}
	if _, content := notesOf(t, dir); len(content) > most || strings.Contains(content, "\na ") {
		t.Errorf("%d bytes", len(content))
	}
	if _, err := keys.LoadPeers(dir); err != nil {
		t.Error(err)
	}
}
