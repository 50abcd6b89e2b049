package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"pdlink/tcp"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/keys"
)

// lookLinks looks at what each way to the decode host leads over.
func (d *prefillDoctor) lookLinks(ctx context.Context) (found []finding) {
	for _, u := range d.f.ways {
		for _, f := range lookLink(ctx, u) {
			if len(d.f.ways) > 1 {
				if f.Level == levelFail { // one is enough, and whether one is there peer says
					f.Level = levelWarn
				}
				f.Text = fmt.Sprintf("%s: %s", u, strings.TrimPrefix(f.Text, u.String()+": "))
			}
			found = append(found, f)
		}
	}
	return found
}

// lookPeers connects to the decode host, over each of the ways. One of them is enough.
func (d *prefillDoctor) lookPeers(ctx context.Context) (found []finding) {
	if !d.keysOK {
		return nil
	}
	for _, u := range d.f.ways {
		f := d.lookPeer(ctx, u)
		if f.Level == levelFail && u.scheme == schemeRDMA && len(d.f.ways) == 1 && lookDevice(u)[0].Level == levelFail {
			continue // link has said it
		}
		found = append(found, f)
	}
	if d.conn == nil {
		return found
	}
	for i := range found {
		if found[i].Level == levelFail {
			found[i].Level = levelWarn
			found[i].Text += "; another way leads there"
		}
	}
	return found
}

// lookPeer connects to the decode host over one way.
func (d *prefillDoctor) lookPeer(ctx context.Context, u linkURL) finding {
	c, err := u.open(linkOptions{keys: d.keys}).Dial(ctx, u.addr)
	switch {
	case d.keys.Own(err): // the error says which of the two
		return bad(dialError(ctx, err).Error(), "`pdlink keys init --replace` on one of the two hosts, and pair them again")
	case err != nil:
		return bad(dialError(ctx, err).Error(), peerCure(u, err))
	}
	x := c.Facts()
	if d.conn == nil {
		d.conn = c
	} else {
		c.Close() //nolint:errcheck // nothing was sent
	}
	text := fmt.Sprintf("%s answers", u)
	switch {
	case x.Proven && x.Sealed:
		text += fmt.Sprintf(", it is %s, and data is sealed", x.Peer)
	case x.Proven:
		text += fmt.Sprintf(", it is %s, and data is not sealed", x.Peer)
	case x.Peer != "":
		text += fmt.Sprintf(" and calls itself %s", x.Peer)
	}
	if u.scheme == schemeRDMA && x.Link != schemeRDMA {
		return doubt(fmt.Sprintf("%s, over %s", text, x.Link), "start `pdlink decode` there with --listen rdma://, on a host that has RDMA")
	}
	return good("%s", text)
}

// noRDMA is in the error of an rdma link whose other end has none: packages of links
// have one error for all that the two ends do not share.
const noRDMA = "has no RDMA"

// peerCure is what to do about a dial that failed, beside what its error says.
func peerCure(u linkURL, err error) string {
	there := linkURL{scheme: u.scheme, addr: u.addr}
	switch {
	case linkkeys.Refused(err):
		return "pair the two hosts again: `pdlink keys show` here and there, and run each line on the other"
	case errors.Is(err, transport.ErrUnavailable) && u.scheme == schemeRDMA:
		return rdmaCure(u)
	case errors.Is(err, transport.ErrIncompatible) && strings.Contains(err.Error(), noRDMA):
		return fmt.Sprintf("start `pdlink decode` there with --listen %s, or use tcp://%s here", there, u.addr)
	case errors.Is(err, transport.ErrIncompatible):
		return "install the same release on both hosts: compare `pdlink version`"
	case errors.Is(err, transport.ErrInsecure):
		return "run `pdlink keys init` here, then on the other host the line that it prints, and here the line that pair prints there"
	case errors.Is(err, transport.ErrProtocol):
		return "another program answers there: name the port of `pdlink decode` (it prints it when it starts; --listen sets it), not that of the decoder or of --front"
	case errors.Is(err, tcp.ErrTurnedAway):
		return "see the log of `pdlink decode` there"
	case u.scheme == schemeUnix:
		return fmt.Sprintf("start `pdlink decode --listen %s` on this host", u)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("start `pdlink decode` there with --listen %s (its default is for that host alone)", there)
	case errors.Is(err, context.DeadlineExceeded):
		host, port, _ := net.SplitHostPort(u.addr) // parseLink did
		return fmt.Sprintf("look whether the host is up and its firewall passes the port: `nc -vz %s %s`", keys.ShellPath(host), port)
	}
	return fmt.Sprintf("start `pdlink decode` there with --listen %s, and let its firewall pass the port", there)
}
