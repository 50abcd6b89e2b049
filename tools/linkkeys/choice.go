package linkkeys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"pdlink/transport/codec"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
)

// Choice is how a link is protected, and whether it codes payloads. The zero value has
// no keys. It may be used concurrently. The caller closes it after the link's last
// connection.
type Choice struct {
	Compress codec.Mode // with keys and without

	Store   *keys.Store // nil: no keys, and nothing of the rest is set
	Dir     Dir         // where they are
	Peer    string      // that is meant; "": any
	Suite   seal.Suite  // that this end wishes for
	Encrypt string      // the same as a value of --encrypt
}

// Place is where a link leads.
type Place struct {
	Addr   string // "host:port", or the path of a socket
	Socket bool   // it is a path
}

// Choose opens the keys that flags and the places that a link leads to mean: those of
// --keys; else those of the default directory, when --encrypt asks for sealing, or
// when there is an identity and a place is not loopback, --peer names a peer, or
// --encrypt is given: off leaves sealing out, not the proof of who it is. Without
// keys the link itself refuses an address that strangers can reach; a --peer that
// nobody could prove to be is refused here. problem is told of what is wrong with
// the peers file later, as keys.Options.OnProblem says. given reports whether a flag
// is on the command line. Errors: those of keys.Open, with what to do, and
// keys.ErrUnknownPeer for a --peer that is not paired.
func (f *Flags) Choose(ctx context.Context, given func(flag string) bool, problem func(error), places ...Place) (Choice, error) {
	if err := f.Check(); err != nil {
		return Choice{}, err
	}
	c, err := f.choose(ctx, given, problem, places)
	if err == nil {
		c.Compress, err = codec.ParseMode(f.Compress)
	}
	return c, err
}

// choose is Choose for flags that were checked, without what needs no keys.
func (f *Flags) choose(ctx context.Context, given func(flag string) bool, problem func(error), places []Place) (Choice, error) {
	suite, err := f.suite()
	if err != nil {
		return Choice{}, err
	}
	wanted := given("keys") || given("encrypt") && suite != seal.Clear
	exposed := slices.ContainsFunc(places, func(p Place) bool { return p.Exposed(ctx) != nil })
	if !wanted && !given("encrypt") && !exposed && f.Peer == "" {
		return Choice{}, nil
	}
	dir, err := DirOf(f.Dir)
	if err != nil {
		return Choice{}, err
	}
	store, err := keys.Open(dir.Path, keys.Options{OnProblem: problem})
	if errors.Is(err, keys.ErrNoIdentity) {
		switch {
		case wanted || exposed && f.Peer != "":
			err = fmt.Errorf("%w in %s: make one with %s%s", keys.ErrNoIdentity, dir, dir.Command("init"), dir.elsewhere())
		case f.Peer != "":
			err = fmt.Errorf("--peer %.20s: %w in %s, so nobody can prove to be that peer: leave --peer out, which this address does not need, or make a key with %s%s",
				f.Peer, keys.ErrNoIdentity, dir, dir.Command("init"), dir.elsewhere())
		default:
			return Choice{}, nil
		}
	}
	if err != nil {
		return Choice{}, err
	}
	c := Choice{Store: store, Dir: dir, Peer: f.Peer, Suite: suite, Encrypt: cmp.Or(f.Encrypt, encryptOn)}
	if err := c.checkPeer(); err != nil {
		return Choice{}, errors.Join(err, c.Close())
	}
	return c, nil
}

// checkPeer makes sure that the peer that is meant is known.
func (c Choice) checkPeer() error {
	if c.Peer == "" {
		return nil
	}
	for _, p := range c.Store.Peers() {
		if p.Name == c.Peer {
			return nil
		}
	}
	name := c.Peer
	if len(name) > 20 { // a private key may have been pasted here: no more of it is repeated
		name = "NAME"
	}
	return fmt.Errorf("--peer %.20s: %w in %s: %s names those that are there, %s adds one", c.Peer, keys.ErrUnknownPeer, c.Dir,
		c.Dir.Command("list"), c.Dir.Command("pair "+name+" KEY"))
}

// Close closes the keys.
func (c Choice) Close() error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Close()
}

// Text says what was chosen, for people; "" without keys.
func (c Choice) Text() string {
	if c.Store == nil {
		return ""
	}
	return "keys of " + c.Dir.String() + ", encrypt " + c.Encrypt
}

// Warnings are what a user should know before the link is opened. listens says
// that this end does.
func (c Choice) Warnings(listens bool) (list []string) {
	if c.Store == nil {
		return nil
	}
	if c.Suite == seal.Clear {
		list = append(list, "--encrypt off: where the other end says so too, whoever can reach the cable can read and change the data")
	}
	if listens && len(c.Store.Peers()) == 0 {
		list = append(list, "no peer is paired yet, so nobody can connect: paste here what `pdlink keys show` prints on the other host")
	}
	return list
}

// ErrExposed is returned for an address that strangers can reach.
var ErrExposed = errors.New("address is not loopback")

// Exposed returns nil where only this host is: every address that host:port means is
// loopback, or it is a socket's path. Else it says why: ErrExposed, with the address;
// another error where that cannot be found out.
func (p Place) Exposed(ctx context.Context) error {
	if p.Socket {
		return nil
	}
	host, _, err := net.SplitHostPort(p.Addr)
	if err != nil {
		return fmt.Errorf("address %q: want host:port: %w", p.Addr, err)
	}
	if host == "" {
		return fmt.Errorf("%w: %q means every interface", ErrExposed, p.Addr)
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return fmt.Errorf("look up host of %q: %w", p.Addr, err)
	}
	if len(ips) == 0 {
		return fmt.Errorf("look up host of %q: no address", p.Addr)
	}
	for _, ip := range ips {
		switch ip = ip.Unmap(); {
		case ip.IsLoopback():
		case ip.String() == host:
			return fmt.Errorf("%w: %s", ErrExposed, p.Addr)
		default:
			return fmt.Errorf("%w: %s (%v)", ErrExposed, p.Addr, ip)
		}
	}
	return nil
}
