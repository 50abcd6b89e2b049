package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// channel is one end of a control channel.
type channel struct {
	in  <-chan []byte
	out chan<- []byte
}

func (c channel) WriteControl(msg []byte) error {
	c.out <- append([]byte(nil), msg...)
	return nil
}

func (c channel) ReadControl() ([]byte, error) {
	if msg, ok := <-c.in; ok {
		return msg, nil
	}
	return nil, io.EOF
}

func channels() (a, b channel) {
	ab, ba := make(chan []byte, 4), make(chan []byte, 4)
	return channel{ba, ab}, channel{ab, ba}
}

// agree runs both halves of a handshake.
func agree(t *testing.T, client, server session.Options) (a, b result[session.Agreement]) {
	t.Helper()
	ca, cb := channels()
	ra := async(func() (session.Agreement, error) {
		return session.Handshake(t.Context(), ca, session.Client, &client)
	})
	b.v, b.err = session.Handshake(t.Context(), cb, session.Server, &server)
	a.v, a.err = wait(t, ra)
	return a, b
}

func TestHandshake(t *testing.T) {
	small, err := transport.NewRing(2, 2*transport.HeaderRoom)
	must(t, err)
	defer small.Close()
	bootA, bootB := transport.NewID(), transport.NewID()
	a, b := agree(t,
		session.Options{Name: "mac\n", Boot: bootA, Lanes: 9, Sums: []string{"md5", "crc32c", "xxh3-64"}, MaxMeta: 100},
		session.Options{Name: "gpu", Boot: bootB, Lanes: 3, SendRing: small})
	must(t, a.err)
	must(t, b.err)
	if !reflect.DeepEqual(a.v.Terms, b.v.Terms) {
		t.Errorf("the client has %+v, the server %+v", a.v.Terms, b.v.Terms)
	}
	if a.v.Peer != "gpu" || a.v.PeerBoot != bootB || b.v.Peer != "mac " || b.v.PeerBoot != bootA {
		t.Errorf("peers %+v, %+v", a.v, b.v)
	}
	want := wire.Terms{
		Epoch: a.v.Epoch, Token: a.v.Token,
		MaxPayload: transport.HeaderRoom, MaxMeta: 100, Lanes: 3, Sum: "crc32c",
		Features: []string{wire.FeaturePing},
	}
	if !reflect.DeepEqual(a.v.Terms, want) || want.Epoch == 0 || want.Token == [16]byte{} {
		t.Errorf("terms %+v, want %+v", a.v.Terms, want)
	}
	c, _ := agree(t, session.Options{}, session.Options{})
	if c.v.Epoch == a.v.Epoch || c.v.Token == a.v.Token {
		t.Error("two connections have one epoch or token")
	}
	if c.v.MaxPayload != transport.DefaultSlot-transport.HeaderRoom || c.v.MaxMeta != transport.MaxMeta ||
		c.v.Lanes != 1 || c.v.Sum != "xxh3-64" {
		t.Errorf("terms of defaults %+v", c.v.Terms)
	}
}

// TestHandshakeSums never lets one end alone switch checking off.
func TestHandshakeSums(t *testing.T) {
	for _, c := range []struct {
		client, server []string
		want           string // empty: incompatible
	}{
		{[]string{"none"}, []string{"none"}, "none"},
		{[]string{"none", "crc32c"}, []string{"none", "crc32c"}, "none"},
		{[]string{"none", "crc32c"}, nil, "crc32c"},
		{nil, []string{"none", "crc32c"}, "crc32c"},
		{[]string{"none"}, nil, ""},
		{nil, []string{"none"}, ""},
		{[]string{"crc32c"}, []string{"xxh3-64"}, ""},
		{[]string{"md5"}, nil, "xxh3-64"},
	} {
		a, b := agree(t, session.Options{Sums: c.client}, session.Options{Sums: c.server})
		if c.want == "" {
			is(t, a.err, transport.ErrIncompatible)
			is(t, b.err, transport.ErrIncompatible)
			continue
		}
		if a.err != nil || b.err != nil || a.v.Sum != c.want {
			t.Errorf("%v with %v: %q, errors %v, %v", c.client, c.server, a.v.Sum, a.err, b.err)
		}
	}
}

// TestHandshakeBad covers peers that are none.
func TestHandshakeBad(t *testing.T) {
	encode := func(m wire.Message) []byte {
		msg, err := wire.Append(nil, m)
		must(t, err)
		return msg
	}
	future := hello()
	future.Major++
	silent := hello() // a server without a token
	for name, c := range map[string]struct {
		says []byte
		want error
	}{
		"hangs up":  {nil, transport.ErrLost},
		"farewell":  {encode(&wire.Bye{Reason: "go away"}), transport.ErrLost},
		"garbage":   {[]byte("GET / HTTP/1.1\r\n"), transport.ErrProtocol},
		"no hello":  {encode(&wire.LaneOK{}), transport.ErrProtocol},
		"version":   {encode(future), transport.ErrIncompatible},
		"no token":  {encode(silent), transport.ErrProtocol},
		"too short": {encode(future)[:9], transport.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			in := make(chan []byte, 1)
			if c.says != nil {
				in <- c.says
			}
			close(in)
			_, err := session.Handshake(t.Context(), channel{in, make(chan []byte, 4)}, session.Client, &session.Options{})
			is(t, err, c.want)
		})
	}
}

// TestHandshakeTells sends the server's hello to a client that it cannot agree
// with, so that the client can tell its user.
func TestHandshakeTells(t *testing.T) {
	in, out := make(chan []byte, 1), make(chan []byte, 1)
	future := hello()
	future.Major++
	msg, err := wire.Append(nil, future)
	must(t, err)
	in <- msg
	_, err = session.Handshake(t.Context(), channel{in, out}, session.Server, &session.Options{})
	is(t, err, transport.ErrIncompatible)
	m, err := wire.Decode(<-out)
	must(t, err)
	if m.Type() != wire.TypeHello {
		t.Errorf("the server said %v", m.Type())
	}
}

// TestHandshakeBounds gives up on a peer that says nothing.
func TestHandshakeBounds(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	begin := time.Now()
	_, err := session.Handshake(t.Context(), pipeControl{a}, session.Server, &session.Options{HandshakeTimeout: 10 * time.Millisecond})
	is(t, err, context.DeadlineExceeded)
	if took := time.Since(begin); took > soon {
		t.Errorf("gave up after %v", took)
	}
	a.Close() // ends what is left of it
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, b = net.Pipe()
	_, err = session.Handshake(ctx, pipeControl{a}, session.Client, &session.Options{})
	is(t, err, context.Canceled)
	a.Close()
	b.Close()
	_, err = session.Handshake(t.Context(), pipeControl{a}, session.Client, &session.Options{})
	if is(t, err, transport.ErrLost); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
}

// pipeControl is a control channel that fails like a socket.
type pipeControl struct{ net.Conn }

func (p pipeControl) WriteControl(msg []byte) error { _, err := p.Write(msg); return err }

func (p pipeControl) ReadControl() ([]byte, error) {
	msg := make([]byte, 100)
	_, err := p.Read(msg)
	return msg, err
}

// TestFeatures has a link's features named beside the session's own, as many as a
// hello takes.
func TestFeatures(t *testing.T) {
	a, b := agree(t, session.Options{Features: []string{"x/1", "x/2"}}, session.Options{Features: []string{"x/3", "x/2"}})
	must(t, a.err)
	must(t, b.err)
	both := []string{wire.FeaturePing, "x/2"}
	if !reflect.DeepEqual(a.v.Features, both) || !reflect.DeepEqual(b.v.Features, both) {
		t.Errorf("agreed on %q and %q, want %q", a.v.Features, b.v.Features, both)
	}
	if got, want := a.v.PeerFeatures, []string{wire.FeaturePing, "x/3", "x/2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the server names %q, want %q", got, want)
	}
	var many []string
	for i := range 2 * wire.MaxNames {
		many = append(many, fmt.Sprint("x/", i))
	}
	a, b = agree(t, session.Options{Features: many}, session.Options{Features: many})
	must(t, a.err)
	must(t, b.err)
	if n := len(a.v.Features); n != wire.MaxNames || a.v.Features[0] != wire.FeaturePing {
		t.Errorf("agreed on %d features: %q", n, a.v.Features)
	}
	// A name that cannot be said is this end's own fault.
	alone, _ := channels()
	_, err := session.Handshake(t.Context(), alone, session.Client, &session.Options{Features: []string{""}})
	is(t, err, transport.ErrInvalid)
}

// TestOptions sets every field to more than it may be and to nothing. A field
// that this test does not know fails it.
func TestOptions(t *testing.T) {
	r, err := transport.NewRing(2, 0)
	must(t, err)
	defer r.Close()
	id := transport.NewID()
	intercept := func(d session.Driver) session.Driver { return d }
	for field, c := range map[string]struct{ wish, want, def any }{
		"Name":             {strings.Repeat("x", 300), strings.Repeat("x", 255), ""},
		"Boot":             {id, id, nil},
		"SendRing":         {r, r, (*transport.Ring)(nil)},
		"RecvRing":         {r, r, (*transport.Ring)(nil)},
		"Window":           {1 << 30, 1024, transport.DefaultWindow},
		"Lanes":            {1 << 30, 64, 1},
		"Sums":             {[]string{"none", "x", "none"}, []string{"none"}, []string{"xxh3-64", "crc32c"}},
		"Features":         {[]string{"x/y"}, []string{"x/y"}, []string(nil)},
		"MaxMeta":          {1 << 30, transport.MaxMeta, transport.MaxMeta},
		"MaxOffers":        {1 << 30, transport.MaxTransfers, transport.MaxTransfers},
		"Intercept":        {session.Interceptor(intercept), nil, nil},
		"HandshakeTimeout": {time.Hour, 10 * time.Minute, 10 * time.Second},
		"Linger":           {time.Hour, time.Minute, time.Second},
		"PingEvery":        {time.Hour, time.Minute, time.Second},
		"LostAfter":        {time.Hour, 10 * time.Minute, 6 * time.Second},
		"IdlePingEvery":    {time.Hour, 10 * time.Minute, 15 * time.Second},
		"IdleLostAfter":    {2 * time.Hour, time.Hour, 45 * time.Second},
	} {
		var o session.Options
		v := reflect.ValueOf(&o).Elem().FieldByName(field)
		if def := reflect.ValueOf(o.WithDefaults()).FieldByName(field).Interface(); c.def != nil && !reflect.DeepEqual(def, c.def) {
			t.Errorf("%s: default %v, want %v", field, def, c.def)
		}
		v.Set(reflect.ValueOf(c.wish))
		once := o.WithDefaults()
		if got := reflect.ValueOf(once).FieldByName(field).Interface(); c.want != nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v became %v, want %v", field, c.wish, got, c.want)
		}
		if field == "Intercept" {
			if once.Intercept == nil {
				t.Error("Intercept was dropped")
			}
			continue
		}
		if twice := once.WithDefaults(); !reflect.DeepEqual(once, twice) {
			t.Errorf("%s: %+v became %+v the second time", field, once, twice)
		}
	}
	if n := reflect.TypeFor[session.Options]().NumField(); n != 17 {
		t.Errorf("Options has %d fields, this test knows 17", n)
	}
	a, b := session.Options{}.WithDefaults(), session.Options{}.WithDefaults()
	if a.Boot == b.Boot || a.Boot == (transport.ID{}) {
		t.Error("Boot is not drawn")
	}
	if o := (session.Options{Window: -1, Lanes: -1, MaxMeta: -1, MaxOffers: -1, Linger: -1}).WithDefaults(); o.Window != transport.DefaultWindow ||
		o.Lanes != 1 || o.MaxMeta != transport.MaxMeta || o.MaxOffers != transport.MaxTransfers || o.Linger != 10*time.Millisecond {
		t.Errorf("negative values became %+v", o)
	}
}

// TestOptionsOfSilence holds the bounds that depend on each other.
func TestOptionsOfSilence(t *testing.T) {
	const off = -time.Nanosecond
	type times struct{ ping, lost, idlePing, idleLost time.Duration }
	for _, c := range []struct{ wish, want times }{
		{times{}, times{time.Second, 6 * time.Second, 15 * time.Second, 45 * time.Second}},
		{times{1, 1, 1, 1}, times{time.Millisecond, 2 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}},
		{times{ping: 20 * time.Second}, times{20 * time.Second, 40 * time.Second, 20 * time.Second, 45 * time.Second}},
		{times{lost: time.Second, idleLost: time.Second}, times{time.Second, 2 * time.Second, 15 * time.Second, 30 * time.Second}},
		{times{off, off, off, off}, times{off, off, off, off}},
		{times{ping: off, idlePing: time.Second}, times{off, 6 * time.Second, time.Second, 45 * time.Second}},
	} {
		o := session.Options{
			PingEvery: c.wish.ping, LostAfter: c.wish.lost, IdlePingEvery: c.wish.idlePing, IdleLostAfter: c.wish.idleLost,
		}.WithDefaults()
		if got := (times{o.PingEvery, o.LostAfter, o.IdlePingEvery, o.IdleLostAfter}); got != c.want {
			t.Errorf("%v became %v, want %v", c.wish, got, c.want)
		}
	}
}
