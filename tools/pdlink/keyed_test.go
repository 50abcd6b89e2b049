package main

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
	"pdlink/transport/transporttest"
)

// sending is a replay process of the case that an expectation is made of.
func sending(t *testing.T, want *expectation, addr string, flags ...string) *process {
	t.Helper()
	return start(t, append([]string{
		"replay", filepath.Join(casesDir, want.name), "--to", "tcp://" + addr, "--format", want.format, "--timeout", patience.String(), "--json",
	}, flags...)...)
}

// resultOf waits for a replay process with --json and returns what it printed.
func resultOf(t *testing.T, p *process, status int) (res replayResult) {
	t.Helper()
	if got := p.wait(); got != status {
		t.Fatalf("status %d, want %d: %v", got, status, p)
	}
	if err := json.Unmarshal([]byte(p.out.String()), &res); err != nil {
		t.Fatalf("%v: %v", err, p)
	}
	return res
}

// protected demands that a verdict's data went over one link, in that state, and
// names its peer.
func protected(t *testing.T, who string, v verdictFields, peers []string, sealed bool, peer string) {
	t.Helper()
	if len(v.Links) != 1 || v.Links[0].Sealed != sealed || v.Links[0].Link != schemeTCP || len(peers) != 1 || peers[0] != peer {
		t.Errorf("%s says %+v and %q, want sealed %t and %s", who, v.Links, peers, sealed, peer)
	}
}

// TestPairedHostsTransferSealed: and what each end says of it, for every choice
// of --encrypt. One end alone cannot switch sealing off.
func TestPairedHostsTransferSealed(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	mac, spark := paired(t)
	for _, c := range []struct {
		here, there string // the sender's and the receiver's --encrypt
		sealed      bool
	}{
		{"", "", true}, {"256", "on", true}, {"off", "on", true}, {"on", "off", true}, {"off", "off", false},
	} {
		t.Run("here "+c.here+" there "+c.there, func(t *testing.T) {
			store, flag := t.TempDir(), func(how string) []string {
				if how == "" {
					return nil
				}
				return []string{"--encrypt", how}
			}
			r := startReceiver(t, store, append([]string{"--keys", mac}, flag(c.there)...)...)
			p := sending(t, want, r.addr, append([]string{"--keys", spark, "--peer", "mac"}, flag(c.here)...)...)
			res := resultOf(t, p, exitOK)
			protected(t, "the sender", res.verdictFields, res.Peers, c.sealed, "mac")
			if n := strings.Count(p.err.String(), "warning: --encrypt off"); (n == 1) != (c.here == "off") || n > 1 {
				t.Errorf("%d warnings: %v", n, p)
			}
			r.stop(t, want, store)
			if e := listeningEvent(t, r); e.Keys != mac || e.Encrypt != cmp.Or(c.there, "on") {
				t.Errorf("%+v", e)
			}
			all := r.verdicts(t)
			if len(all) != 1 || all[0].State != bridge.Complete {
				t.Fatalf("%+v", all)
			}
			protected(t, "the receiver", all[0].verdictFields, all[0].Peers, c.sealed, "spark")
			if n := strings.Count(r.err.String(), "warning: --encrypt off"); (n == 1) != (c.there == "off") || n > 1 {
				t.Errorf("%d warnings: %v", n, r)
			}
		})
	}
}

// TestPeopleReadWhetherItWasSealed: in the text of both ends.
func TestPeopleReadWhetherItWasSealed(t *testing.T) {
	mac, spark := paired(t)
	for _, c := range []struct {
		encrypt, say string
	}{{"on", "tcp (sealed)"}, {"off", "tcp (in clear)"}} {
		r := startText(t, "decode", "--listen", "tcp://127.0.0.1:0", "--discard", "--once", "--keys", mac, "--encrypt", c.encrypt)
		addr, rest, _ := strings.Cut(strings.TrimPrefix(r.out.String(), "listening on "), ",")
		if !strings.Contains(rest, "keys of "+mac+", encrypt "+c.encrypt) {
			t.Errorf("%v", r)
		}
		t.Setenv(linkkeys.Env, spark)
		status, out, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", addr, "--peer", "mac", "--encrypt", c.encrypt)
		if status != exitOK || !strings.HasPrefix(out, "kv-qwen3 over "+c.say+" to mac: complete\n") || !strings.Contains(errOut, "keys of "+spark) {
			t.Errorf("status %d: %s%s", status, out, errOut)
		}
		if status := r.wait(); status != exitOK || !strings.Contains(r.out.String(), ", over "+c.say+" from spark\n") {
			t.Errorf("status %d: %v", status, r)
		}
	}
}

// startText starts a `pdlink decode` without --json and waits for its first line.
func startText(t *testing.T, args ...string) *process {
	t.Helper()
	p := start(t, args...)
	if !eventually(processLimit, func() bool { return strings.Contains(p.out.String(), "\n") || p.ended() }) || p.ended() {
		t.Fatalf("does not listen: %v", p)
	}
	return p
}

// TestKeysThatDoNotFitAreRefusedWithTheCure: what each end says when the two do
// not know each other. Nothing comes into the store.
func TestKeysThatDoNotFitAreRefusedWithTheCure(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	mac, spark := paired(t)
	var macOwn ownKey
	decoded(t, &macOwn, "keys", "show", "--dir", mac)
	eve, eveKey := keyed(t) // knows mac, mac does not know it
	cli(t, "keys", "pair", "mac", macOwn.Key, "--dir", eve, "--name", "eve")
	stranger, _ := keyed(t) // knows nobody
	cli(t, "keys", "pair", "other", eveKey, "--dir", spark)
	none := t.TempDir()
	store := t.TempDir()
	withKeys := startReceiver(t, store, "--keys", mac)
	without := startReceiver(t, store)
	for _, c := range []struct {
		what   string
		to     *receiver
		flags  []string
		status int
		say    string
		log    string // of the receiver
	}{
		{"a sender that the receiver does not know", withKeys, []string{"--keys", eve}, exitFailed,
			"does not know this host's key: run `pdlink keys pair eve " + eveKey + "` there",
			"key " + eveKey[:15] + "... is not in " + filepath.Join(mac, keys.PeersFile) + ": if you know whose it is, run here the `pdlink keys pair` line that `pdlink keys show` prints there; " +
				"no data was sent: make sure that it is the right host before you trust it, and add --dir " + mac + " to the command"},
		{"a receiver that the sender does not know", withKeys, []string{"--keys", stranger}, exitFailed,
			"key " + macOwn.Key[:15] + "... is not in " + filepath.Join(stranger, keys.PeersFile) + ": if you know whose it is, run here the `pdlink keys pair` line that `pdlink keys show` prints there; " +
				"no data was sent: make sure that it is the right host before you trust it, and add --dir " + stranger + " to the command", "does not know this host's key"},
		{"a peer that is not the one", withKeys, []string{"--keys", spark, "--peer", "other"}, exitFailed, "want other, this is mac", "does not know this host's key"},
		{"a peer that nobody knows", withKeys, []string{"--keys", spark, "--peer", "nobody"}, exitUsage,
			"`pdlink keys pair nobody KEY --dir " + spark + "` adds one", ""},
		{"no identity", withKeys, []string{"--keys", none}, exitUsage, "no private key in " + none + ": make one with `pdlink keys init --dir " + none + "`", ""},
		{"a sender without keys", withKeys, nil, exitFailed, "takes only peers with keys: run `pdlink keys init`", "the other end uses no keys: run `pdlink keys init` on its host"},
		{"a receiver without keys", without, []string{"--keys", spark}, exitFailed, "the other end uses no keys: run `pdlink keys init` on its host",
			"takes only peers with keys: run `pdlink keys init` on this host"},
	} {
		p := sending(t, want, c.to.addr, c.flags...)
		if status := p.wait(); status != c.status || !strings.Contains(p.err.String(), c.say) {
			t.Errorf("%s: status %d, want %d and %q: %v", c.what, status, c.status, c.say, p)
		}
		if out := p.out.String(); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"state":"failed"`) {
			t.Errorf("%s: printed %q", c.what, p.out.String())
		}
		if !eventually(processLimit, func() bool { return strings.Contains(c.to.err.String(), c.log) }) {
			t.Errorf("%s: the receiver does not say %q: %v", c.what, c.log, c.to)
		}
	}
	if strings.Contains(withKeys.err.String(), eveKey) {
		t.Errorf("a stranger's key is there to be pasted: %v", withKeys)
	}
	if v := append(withKeys.verdicts(t), without.verdicts(t)...); len(v) != 0 {
		t.Errorf("transfers: %+v", v)
	}
	if c := want.check(t, store); c != (contents{}) {
		t.Errorf("%+v", c)
	}
}

// TestOtherAddressesNeedKeys: and take those that are there.
func TestOtherAddressesNeedKeys(t *testing.T) {
	mac, spark := paired(t)
	t.Setenv(linkkeys.Env, t.TempDir())
	for _, args := range [][]string{
		{"decode", "--listen", "tcp://0.0.0.0:0", "--discard"}, {"replay", "bundled:kv-qwen3", "--to", "tcp://192.0.2.1:7411"},
	} {
		status, _, errOut := cli(t, args...)
		if status != exitUsage || !strings.Contains(errOut, "run `pdlink keys init` and `pdlink keys pair`") || !strings.Contains(errOut, "--keys DIR") {
			t.Errorf("%v: status %d: %s", args, status, errOut)
		}
	}
	t.Setenv(linkkeys.Env, mac)
	r := startText(t, "decode", "--listen", "tcp://0.0.0.0:0", "--discard", "--once", "--json")
	var e listening
	if err := json.Unmarshal([]byte(r.out.String()), &e); err != nil || e.Keys != mac || e.Encrypt != "on" {
		t.Fatalf("%+v, %v", e, err)
	}
	port := e.Listen[strings.LastIndex(e.Listen, ":"):]
	res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--to", "tcp://127.0.0.1"+port, "--keys", spark)
	protected(t, "the sender", res.verdictFields, res.Peers, true, "mac")
	if status := r.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, r)
	}
	// On loopback nobody asks for keys that are there.
	r = startText(t, "decode", "--listen", "tcp://127.0.0.1:0", "--discard", "--once", "--json")
	if err := json.Unmarshal([]byte(r.out.String()), &e); err != nil || e.Keys != "" || e.Encrypt != "" {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestAReceiverWithoutPeersSaysSo: nobody could ever connect.
func TestAReceiverWithoutPeersSaysSo(t *testing.T) {
	dir, _ := keyed(t)
	r := startText(t, "decode", "--listen", "tcp://127.0.0.1:0", "--discard", "--keys", dir)
	if !strings.Contains(r.err.String(), "nobody can connect") {
		t.Errorf("%v", r)
	}
}

// TestRevocationEndsATransferThatRuns: within seconds, at both ends, whichever
// revokes the other, with a verdict that says how far it came; what is visible is
// right. Paired again, the same command sends the rest.
func TestRevocationEndsATransferThatRuns(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	for _, by := range []string{"mac", "spark"} {
		t.Run("by "+by, func(t *testing.T) {
			t.Parallel()
			revokeWhileItRuns(t, want, by)
		})
	}
}

// revokeLimit is how long it may take until a revocation has ended a transfer: two
// seconds, and what a busy machine adds.
const revokeLimit = 25 * time.Second

func revokeWhileItRuns(t *testing.T, want *expectation, by string) {
	mac, spark := paired(t)
	dir, other, peer := mac, spark, "spark"
	if by == "spark" {
		dir, other, peer = spark, mac, "mac"
	}
	var own ownKey
	decoded(t, &own, "keys", "show", "--dir", other)
	store := t.TempDir()
	r := startReceiver(t, store, "--keys", mac, "--part-wait", partWait.String())
	// A pause before each of the reads makes the transfer take half a minute and more.
	proxy := transporttest.NewProxy(t, r.addr, transporttest.ProxyOptions{Delay: time.Second})
	p := sending(t, want, proxy.Addr(), "--keys", spark, "--chunk", "16", "--timeout", "0")
	if !eventually(processLimit, func() bool { return want.check(t, store).parts > 0 || p.ended() }) || p.ended() {
		t.Fatalf("nothing arrives: %v", p)
	}
	if status, _, errOut := cli(t, "keys", "revoke", peer, "--dir", dir); status != exitOK {
		t.Fatal(errOut)
	}
	revoked := time.Now()
	res := resultOf(t, p, exitFailed)
	if took := time.Since(revoked); took > revokeLimit {
		t.Errorf("the sender went on for %v", took)
	}
	if res.State != stateFailed && res.State != bridge.Partial || res.Reason == "" {
		t.Errorf("%v", p)
	}
	if !eventually(processLimit, func() bool { return len(r.verdicts(t)) > 0 }) {
		t.Fatalf("no verdict: %v", r)
	}
	v := r.verdicts(t)[0]
	if c := want.check(t, store); v.State != bridge.Partial || v.Blocks != c.visible || v.Reason == "" || len(v.Peers) != 1 || v.Peers[0] != "spark" {
		t.Errorf("%+v, %d blocks are visible", v, c.visible)
	}
	if by == "mac" && !strings.Contains(v.Reason, "the sender did not finish") || by == "mac" && !strings.Contains(v.Reason, "was taken out of the peers file of this host") {
		t.Errorf("the verdict does not say why the sender is gone: %q", v.Reason)
	}
	// The sender always hears why, and the end that revoked says it.
	if by == "mac" && !strings.Contains(p.err.String()+res.Reason, "revoked: this host's key was taken out of the peers file there") {
		t.Errorf("the sender was not told: %v", p)
	}
	if by == "mac" && !eventually(processLimit, func() bool {
		return strings.Contains(r.err.String(), "dropped: handshake: revoked: unknown peer: spark (key ")
	}) ||
		strings.Contains(r.err.String(), "pdlink keys pair") {
		t.Errorf("the log offers to pair again, or says nothing of the dial after the end: %v", r)
	}
	why := map[string]*process{"mac": r.process, "spark": p}[by]
	if !strings.Contains(why.err.String(), peer+" (key "+own.Key[:15]+"...) was taken out of the peers file") {
		t.Errorf("no word about the reason: %v", why)
	}
	if status, _, errOut := cli(t, "keys", "pair", peer, own.Key, "--dir", dir); status != exitOK {
		t.Fatal(errOut)
	}
	if !eventually(processLimit, func() bool { return sending(t, want, r.addr, "--keys", spark).wait() == exitOK }) {
		t.Error("it stays revoked")
	}
	if c := want.check(t, store); c.visible != len(want.hashes) {
		t.Errorf("%d of %d blocks", c.visible, len(want.hashes))
	}
	r.stop(t, want, store)
}

// TestUnixSocketNeedsNoKeys: its mode says who may connect.
func TestUnixSocketNeedsNoKeys(t *testing.T) {
	dir, err := os.MkdirTemp("", "pdlink") // short: a socket's path has some 100 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	url, store := "unix://"+filepath.Join(dir, "s"), filepath.Join(dir, "store")
	r := start(t, "decode", "--json", "--listen", url, "--store", store)
	if !eventually(processLimit, func() bool { return len(r.out.events("listening")) > 0 || r.ended() }) || r.ended() {
		t.Fatalf("it does not listen: %v", r)
	}
	res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--to", url)
	if res.State != bridge.Complete || len(res.Links) != 1 || res.Links[0].Link != schemeUnix {
		t.Errorf("%+v", res)
	}
	if status, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", url+"x"); status != exitFailed || !strings.Contains(errOut, "nobody listens") {
		t.Errorf("no socket there: status %d, %s", status, errOut)
	}
}
