package tcp

import (
	"path/filepath"
	"testing"
	"time"

	"pdlink/transport/keys"
)

// quickPoll is how often the stores of tests look at their files.
const quickPoll = 10 * time.Millisecond

// keyDirs makes the directories of n hosts that all know each other: host i calls
// host j the j-th of names.
func keyDirs(tb testing.TB, names ...string) []string {
	tb.Helper()
	var dirs []string
	var peers []keys.Peer
	for _, name := range names {
		dir := filepath.Join(tb.TempDir(), "keys")
		id, err := keys.Init(tb.Context(), dir, false)
		if err != nil {
			tb.Fatal(err)
		}
		dirs = append(dirs, dir)
		peers = append(peers, keys.Peer{Name: name, Key: id.Public()})
	}
	for i, dir := range dirs {
		for j, p := range peers {
			if i == j {
				continue
			}
			if err := keys.AddPeer(tb.Context(), dir, p); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return dirs
}

// openKeys opens a directory until the test ends.
func openKeys(tb testing.TB, dir string) *keys.Store {
	tb.Helper()
	s, err := keys.Open(dir, keys.Options{Poll: quickPoll})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// twoHosts are the keys of a server and a client that know each other as "server"
// and "client".
func twoHosts(tb testing.TB) (server, client *keys.Store) {
	tb.Helper()
	dirs := keyDirs(tb, "server", "client")
	return openKeys(tb, dirs[0]), openKeys(tb, dirs[1])
}

// strangerKeys are those of a host that knows the server and that the server does
// not know.
func strangerKeys(tb testing.TB, server *keys.Store) *keys.Store {
	tb.Helper()
	dir := keyDirs(tb, "stranger")[0]
	if err := keys.AddPeer(tb.Context(), dir, keys.Peer{Name: "server", Key: server.Public()}); err != nil {
		tb.Fatal(err)
	}
	return openKeys(tb, dir)
}
