package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"pdlink/transport"
	"pdlink/transport/keys"
)

// names is a resolver that knows a few hosts.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	list, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (n names) LookupPort(ctx context.Context, network, service string) (int, error) {
	return net.DefaultResolver.LookupPort(ctx, network, service)
}

func testNames() names {
	return names{
		"localhost": {"::1", "127.0.0.1", "127.0.0.1"},
		"here":      {"::ffff:127.0.0.5"},
		"mixed":     {"127.0.0.1", "192.168.1.7"},
		"mixed6":    {"::1", "fe80::1"},
		"lan":       {"10.0.0.1"},
		"nobody":    {},
		"any":       {"0.0.0.0"},
	}
}

func TestResolveTakesOnlyLoopback(t *testing.T) {
	tests := []struct {
		addr     string
		want     string // joined addresses; empty: an error
		insecure bool
	}{
		{addr: "127.0.0.1:80", want: "127.0.0.1:80"},
		{addr: "127.8.9.10:0", want: "127.8.9.10:0"},
		{addr: "[::1]:80", want: "[::1]:80"},
		{addr: "[::ffff:127.0.0.1]:80", want: "127.0.0.1:80"},
		{addr: "localhost:80", want: "127.0.0.1:80 [::1]:80"},
		{addr: "here:80", want: "127.0.0.5:80"},
		{addr: "", insecure: true},
		{addr: ":80", insecure: true},
		{addr: ":", insecure: true},
		{addr: "0.0.0.0:80", insecure: true},
		{addr: "[::]:80", insecure: true},
		{addr: "[::ffff:0.0.0.0]:80", insecure: true},
		{addr: "[::ffff:10.0.0.1]:80", insecure: true},
		{addr: "10.0.0.1:80", insecure: true},
		{addr: "192.168.1.7:80", insecure: true},
		{addr: "169.254.1.1:80", insecure: true},
		{addr: "[fe80::1%eth0]:80", insecure: true},
		{addr: "[2001:db8::1]:80", insecure: true},
		{addr: "255.255.255.255:80", insecure: true},
		{addr: "224.0.0.1:80", insecure: true},
		{addr: "128.0.0.1:80", insecure: true},
		{addr: "126.255.255.255:80", insecure: true},
		{addr: "mixed:80", insecure: true},
		{addr: "mixed6:80", insecure: true},
		{addr: "lan:80", insecure: true},
		{addr: "any:80", insecure: true},
		{addr: "nobody:80"},
		{addr: "unheard-of:80"},
		{addr: "127.0.0.1"},
		{addr: "::1:80:"},
		{addr: "127.0.0.1:65536"},
		{addr: "127.0.0.1:-1"},
		{addr: "127.0.0.1:no-such-service"},
	}
	for _, tt := range tests {
		t.Run(tt.addr, func(t *testing.T) {
			got, err := resolve(t.Context(), testNames(), tt.addr, false)
			var words []string
			for _, a := range got {
				words = append(words, a.String())
			}
			if s := strings.Join(words, " "); s != tt.want {
				t.Errorf("resolved to %q, want %q", s, tt.want)
			}
			if (err == nil) != (tt.want != "") {
				t.Errorf("error %v", err)
			}
			if errors.Is(err, transport.ErrInsecure) != tt.insecure {
				t.Errorf("error %v: Is ErrInsecure is not %v", err, tt.insecure)
			}
			if tt.insecure {
				if saysFix(t, err, "is not loopback"); !errors.Is(err, keys.ErrExposed) {
					t.Errorf("not ErrExposed: %v", err)
				}
			}
		})
	}
}

func TestResolveTakesAllWithKeys(t *testing.T) {
	for addr, want := range map[string]string{
		"":                        "",
		":80":                     ":80",
		"0.0.0.0:80":              "0.0.0.0:80",
		"[::]:80":                 "[::]:80",
		"10.0.0.1:80":             "10.0.0.1:80",
		"[fe80::1%eth0]:80":       "[fe80::1%eth0]:80",
		"[::ffff:192.168.1.1]:80": "192.168.1.1:80",
		"mixed:80":                "127.0.0.1:80 192.168.1.7:80",
		"lan:80":                  "10.0.0.1:80",
		"nobody:80":               "",
		"unheard-of:80":           "",
		"127.0.0.1":               "",
		"127.0.0.1:65536":         "",
	} {
		got, err := resolve(t.Context(), testNames(), addr, true)
		var words []string
		for _, a := range got {
			words = append(words, socketAddr(a))
		}
		if s := strings.Join(words, " "); s != want || (err == nil) != (want != "") || errors.Is(err, transport.ErrInsecure) {
			t.Errorf("%q resolved to %q, %v, want %q", addr, s, err, want)
		}
	}
}

// otherAddrs is a socket that claims any two addresses.
type otherAddrs struct {
	net.Conn
	local, remote net.Addr
}

func (o otherAddrs) LocalAddr() net.Addr  { return o.local }
func (o otherAddrs) RemoteAddr() net.Addr { return o.remote }

func TestCheckSocketLooksAtBothEnds(t *testing.T) {
	at := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	tests := []struct {
		name          string
		local, remote net.Addr
		ok            bool
	}{
		{"both loopback", at("127.0.0.1:1"), at("127.0.0.1:2"), true},
		{"both loopback, 6", at("[::1]:1"), at("[::1]:2"), true},
		{"mapped", at("[::ffff:127.0.0.1]:1"), at("127.3.0.1:2"), true},
		{"peer elsewhere", at("127.0.0.1:1"), at("10.0.0.1:2"), false},
		{"local elsewhere", at("10.0.0.1:1"), at("127.0.0.1:2"), false},
		{"peer unknown", at("127.0.0.1:1"), nil, false},
		{"no TCP", &net.UnixAddr{Name: "x"}, &net.UnixAddr{Name: "x"}, false},
		{"empty", &net.TCPAddr{}, &net.TCPAddr{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkSocket(otherAddrs{local: tt.local, remote: tt.remote})
			if (err == nil) != tt.ok || (err != nil && !errors.Is(err, transport.ErrInsecure)) {
				t.Errorf("error %v, want ok %v", err, tt.ok)
			}
		})
	}
}

func TestDialAndListenRefuseStrangersAddresses(t *testing.T) {
	l := New(Options{})
	l.names = testNames()
	for _, addr := range []string{"", ":0", "0.0.0.0:0", "[::]:0", "mixed:0", "lan:4000", "any:4000"} {
		if s, err := l.Listen(t.Context(), addr); !errors.Is(err, transport.ErrInsecure) {
			t.Errorf("listen at %q: %v, %v", addr, s, err)
		}
		if c, err := l.Dial(t.Context(), addr); !errors.Is(err, transport.ErrInsecure) {
			t.Errorf("dial %q: %v, %v", addr, c, err)
		}
	}
	if _, err := l.Dial(t.Context(), "127.0.0.1:0"); err == nil {
		t.Error("dialled port 0")
	}
}
