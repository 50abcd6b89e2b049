package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pdlink/transport/keys"
)

// TestPairingAtTheSameTime: in a directory without a key all commands succeed, with
// one key.
func TestPairingAtTheSameTime(t *testing.T) {
	var others []string
	for range 6 {
		_, key := keyed(t)
		others = append(others, key)
	}
	for range 5 {
		dir := filepath.Join(t.TempDir(), "keys")
		var wg sync.WaitGroup
		for i, key := range others {
			wg.Go(func() {
				if status, out, errOut := cli(t, "keys", "pair", fmt.Sprint("p", i), key, "--dir", dir); status != exitOK {
					t.Errorf("status %d: %s%s", status, out, errOut)
				}
			})
		}
		wg.Wait()
		if peers, err := keys.LoadPeers(dir); err != nil || len(peers) != len(others) {
			t.Errorf("%v, %v", peers, err)
		}
	}
}

// TestRevokeNamesEveryLine: that it took out.
func TestRevokeNamesEveryLine(t *testing.T) {
	mac, _ := paired(t)
	file := filepath.Join(mac, keys.PeersFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, asJSON := range []bool{false, true} {
		both := string(b) + "copy" + strings.TrimPrefix(string(b[strings.LastIndex(string(b), "\nspark")+1:]), "spark")
		if err := os.WriteFile(file, []byte(both), 0o600); err != nil {
			t.Fatal(err)
		}
		if asJSON {
			var r revocation
			decoded(t, &r, "keys", "revoke", "copy", "--dir", mac)
			if len(r.Peers) != 2 || r.Peers[0].Name != "spark" || r.Peers[1].Name != "copy" || r.Peers[0].Key != r.Peers[1].Key {
				t.Errorf("%+v", r)
			}
		} else {
			_, out, _ := cli(t, "keys", "revoke", "spark", "--dir", mac)
			lines := slices.Collect(strings.Lines(out))
			if len(lines) != 2 || !strings.HasPrefix(lines[0], "revoked spark, ") || !strings.HasPrefix(lines[1], "revoked copy, ") {
				t.Errorf("%q", out)
			}
		}
		if peers, err := keys.LoadPeers(mac); err != nil || len(peers) != 0 {
			t.Errorf("%v, %v", peers, err)
		}
	}
}

// TestNoTunnelWhereKeysAre: what a sender with keys says of an end that hangs up.
func TestNoTunnelWhereKeysAre(t *testing.T) {
	_, spark := paired(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for _, say := range []string{"hung up before it proved who it is", "nobody listens there"} {
		status, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", "tcp://"+l.Addr().String(), "--keys", spark, "--retry", "1s")
		if status != exitFailed || !strings.Contains(errOut, say) || strings.Contains(errOut, "tunnel") {
			t.Errorf("status %d: %s", status, errOut)
		}
		l.Close()
	}
}
