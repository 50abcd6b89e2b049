package main

import (
	"fmt"
	"strings"

	"pdlink/bridge"
	"pdlink/transport"
)

// listening is the event that decode prints first.
type listening struct {
	Event  string `json:"event"`
	Listen string `json:"listen"`
	Store  string `json:"store"`  // absolute; empty with --discard
	New    bool   `json:"new"`    // the store was made
	Blocks int    `json:"blocks"` // that it held
	// With keys: their directory, and the value of --encrypt.
	Keys    string `json:"keys"`
	Encrypt string `json:"encrypt"`
	Front   string `json:"front,omitempty"` // where the front door is
	Watch   string `json:"watch,omitempty"` // where the live page is
}

// verdictFields are a verdict's, under the same names in every output.
type verdictFields bridge.Verdict

// transferEvent is the event of a transfer that ended.
type transferEvent struct {
	Event   string `json:"event"`
	Verdict string `json:"verdict"` // state and reason in one text
	verdictFields
	Peers []string `json:"peers,omitempty"` // with keys: the senders' names here
}

func (d *decoding) transferEventOf(v bridge.Verdict) transferEvent {
	e := transferEvent{Event: "transfer", Verdict: v.String(), verdictFields: verdictFields(v)}
	if id, err := transport.ParseID(v.Transfer); err == nil {
		e.Peers = d.peers.take(id)
	}
	return e
}

// declinedEvent is the event of a transfer that was refused.
type declinedEvent struct {
	Event    string       `json:"event"`
	Verdict  string       `json:"verdict"`
	Transfer string       `json:"transfer"`
	State    bridge.State `json:"state"`
	Reason   string       `json:"reason"`
}

func declinedEventOf(id transport.ID, reason string) declinedEvent {
	v := bridge.Verdict{Transfer: id.String(), State: bridge.Declined, Reason: reason}
	return declinedEvent{"declined", v.String(), v.Transfer, v.State, v.Reason}
}

// ended is the event that decode prints last.
type ended struct {
	Event   string `json:"event"`
	PeakRSS uint64 `json:"peak_rss_bytes"`
	Ring    uint64 `json:"ring_bytes"`
}

// say prints an event. Where it cannot be printed the receiver goes on, and
// that is said once.
func (d *decoding) say(event any) {
	d.hide()
	if d.asJSON {
		d.std.json(event) //nolint:errcheck // see below
	} else {
		d.print(event)
	}
	if err := d.std.out.failure(); err != nil && !d.lost {
		d.lost = true
		d.journal.say("pdlink: warning: events are lost from here on, receiving goes on: %v\n", err)
	}
}

func (d *decoding) print(event any) {
	std := d.std
	switch e := event.(type) {
	case listening:
		where := ", keeping nothing"
		if e.Store != "" {
			where = fmt.Sprintf(" into %s (%s)", e.Store, state{created: e.New, blocks: e.Blocks}.what())
		}
		switch {
		case e.Front != "" && e.Store == "":
			where = " into the decoder's own store, front door at http://" + e.Front
		case e.Front != "":
			where += ", front door at http://" + e.Front
		}
		if e.Keys != "" {
			where += fmt.Sprintf(", keys of %s, encrypt %s", e.Keys, e.Encrypt)
		}
		std.printf("listening on %s%s%s\n", e.Listen, where, watchText(e.Watch))
	case transferEvent:
		rate, over := "", ""
		if e.Seconds > 0 {
			rate = fmt.Sprintf(", %.2f GB/s", float64(e.Bytes)/e.Seconds/1e9)
		}
		if len(e.Links) > 0 {
			over = ", over " + linkText(e.Links)
		}
		if len(e.Peers) > 0 {
			over += " from " + listText(e.Peers)
		}
		std.printf("transfer %s: %s, %d of %d blocks visible (%d before), %s in %.3f s%s%s\n",
			e.Transfer, std.verdict(e.Verdict, e.State == bridge.Complete), e.Blocks, e.Total, e.Present,
			bytesText(e.Bytes), e.Seconds, rate, over)
		printPorts(std, "its ports", e.Ports)
	case declinedEvent:
		std.printf("transfer %s: %s\n", e.Transfer, std.verdict(e.Verdict, false))
	case texter:
		e.text(std)
	case lostEvent:
		std.printf("%d events are lost, since nobody read them in time\n", e.Count)
	case ended:
		std.printf("ended: peak RSS %s, of which the ring %s\n", bytesText(e.PeakRSS), bytesText(e.Ring))
	}
}

// watchText is where the live page is, for people: an address that means all of this host's
// cannot be opened everywhere.
func watchText(url string) string {
	for _, all := range []string{"//[::]:", "//0.0.0.0:"} {
		if here := strings.Replace(url, all, "//localhost:", 1); here != url {
			return ", watch it at " + here + ", from other hosts at an address of this one"
		}
	}
	if url == "" {
		return ""
	}
	return ", watch it at " + url
}

// linkText names the links that carried a transfer.
func linkText(links []bridge.LinkUse) string {
	text := ""
	for _, l := range links {
		if text != "" {
			text += " + "
		}
		text += l.Link
		packed := l.Packed()
		if packed != "" {
			packed = ", " + packed
		}
		switch {
		case l.Sealed:
			text += " (sealed" + packed + ")"
		case l.Link != schemeMem: // it has no cable
			text += " (in clear" + packed + ")"
		}
	}
	return text
}
