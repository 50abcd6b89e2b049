package keys_test

import (
	"context"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/transport/keys"
)

// TestRevokingTakesEveryLineOfTheKey: a copy under another name, or one that is
// wrong in another way, must not keep the host in.
func TestRevokingTakesEveryLineOfTheKey(t *testing.T) {
	rfc, seq := parse(t, rfcText), parse(t, seqText)
	all := "# head\n" + aLine + "copy " + rfcText + "\n" + bLine + "-wrong " + rfcText + "\nmac " + strings.ToUpper(rfcText) + " 10.0.0.5\nx y\n"
	for _, arg := range []string{"a", "copy", rfcText, strings.ToUpper(rfcText)} {
		dir := t.TempDir()
		writePeers(t, dir, all)
		got, err := keys.RemovePeer(t.Context(), dir, arg)
		if want := []keys.Peer{{Name: "a", Key: rfc}, {Name: "copy", Key: rfc}}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: removed %v, %v", arg, got, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, keys.PeersFile)); err != nil || string(b) != "# head\n"+bLine+"x y\n# revoked: "+aLine {
			t.Errorf("%s: left %q, %v", arg, b, err)
		}
	}
	// One name, two keys: both go.
	dir := t.TempDir()
	writePeers(t, dir, aLine+"a "+seqText+"\nother "+seqText+"\n")
	got, err := keys.RemovePeer(t.Context(), dir, "a")
	if want := []keys.Peer{{Name: "a", Key: rfc}, {Name: "a", Key: seq}, {Name: "other", Key: seq}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("removed %v, %v", got, err)
	}
}

// TestRevokedCopyEndsInARunningStore: the same while somebody is connected.
func TestRevokedCopyEndsInARunningStore(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, p *problems) {
		rfc := parse(t, rfcText)
		a := admit(t, s, rfc)
		writePeers(t, dir, aLine+bLine+"copy "+rfcText+"\n")
		if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
			t.Fatal(err)
		}
		settle()
		if _, err := s.Admit(rfc); !errors.Is(err, keys.ErrUnknownPeer) || !ended(a) {
			t.Errorf("ended %v; admitted again: %v", ended(a), err)
		}
		// By hand, one line of the two.
		writePeers(t, dir, aLine+bLine)
		settle()
		a = admit(t, s, rfc)
		writePeers(t, dir, bLine+"copy "+rfcText+"\n")
		settle()
		if !ended(a) {
			t.Error("what was admitted as a lives on under another name")
		}
		if got := p.take(); len(got) != 0 {
			t.Errorf("problems %v", got)
		}
	})
}

// TestRubbishIsToldOfBriefly: a file of wrong lines makes a short message.
func TestRubbishIsToldOfBriefly(t *testing.T) {
	dir := t.TempDir()
	writePeers(t, dir, strings.Repeat("x\n", 1<<18))
	_, err := keys.LoadPeers(dir)
	if !errors.Is(err, keys.ErrBadFile) || len(err.Error()) > 10*(len(dir)+100) || strings.Count(err.Error(), "\n") != 5 ||
		!strings.HasSuffix(err.Error(), "and 262139 more lines") {
		t.Errorf("%d bytes: %.2000v", len(err.Error()), err)
	}
}

// TestPastedSecretsAreNotRepeated: who pastes the body of a private key instead of
// a name or a public key does not find it in a message, or in a log.
func TestPastedSecretsAreNotRepeated(t *testing.T) {
	dir := t.TempDir()
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, keys.IdentityFile))
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Split(string(file), "\n")[1]
	block, _ := pem.Decode(file)
	if len(body) != 64 || block == nil || len(block.Bytes) != 48 {
		t.Fatalf("a body of %d letters", len(body))
	}
	s, err := keys.Open(dir, keys.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, named := s.ClientConfig(body)
	_, parsed := keys.ParsePublic(body)
	_, removed := keys.RemovePeer(t.Context(), dir, body)
	writePeers(t, dir, body+" "+rfcText+"\na "+body+"\n")
	_, loaded := keys.LoadPeers(dir)
	for what, err := range map[string]error{
		"named": named, "parsed": parsed, "removed": removed, "loaded": loaded, "checked": keys.CheckName(body),
		"added": keys.AddPeer(t.Context(), t.TempDir(), keys.Peer{Name: body, Key: keys.PublicKey{1}}),
	} {
		// Its first 21 letters are the same in every key.
		if err == nil || strings.Contains(err.Error(), body[:22]) || strings.Contains(err.Error(), body[21:30]) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLeftoversOfKilledProcessesGo: they may be private keys.
func TestLeftoversOfKilledProcessesGo(t *testing.T) {
	dir := t.TempDir()
	left, other := filepath.Join(dir, ".new-123"), filepath.Join(dir, ".new-dir")
	for _, change := range []func() error{
		func() error { _, err := keys.Init(t.Context(), dir, false); return err },
		func() error {
			return keys.AddPeer(t.Context(), dir, keys.Peer{Name: "a", Key: parse(t, rfcText)})
		},
		func() error { _, err := keys.RemovePeer(t.Context(), dir, "a"); return err },
	} {
		if err := errors.Join(os.WriteFile(left, []byte("secret"), 0o600), os.MkdirAll(other, 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
		if _, err := os.Stat(other); err != nil {
			t.Errorf("what is not ours: %v", err)
		}
	}
}

// TestHangingProblemDoesNotHoldRevocations: a log that nobody reads.
func TestHangingProblemDoesNotHoldRevocations(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	writePeers(t, dir, aLine+bLine)
	called, release := make(chan struct{}, 8), make(chan struct{})
	s, err := keys.Open(dir, keys.Options{Poll: 5 * time.Millisecond, OnProblem: func(error) { called <- struct{}{}; <-release }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer close(release)
	a, b := admit(t, s, parse(t, rfcText)), admit(t, s, parse(t, seqText))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, step := range []struct {
		content string
		ends    keys.Admission
	}{{aLine + "b\n", b}, {"c\n", a}} {
		writePeers(t, dir, step.content)
		select {
		case <-step.ends.Revoked:
		case <-ctx.Done():
			t.Fatalf("%s is not revoked", step.ends.Peer.Name)
		}
	}
	<-called
}
