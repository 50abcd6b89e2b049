package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"pdlink/bridge/front"
)

// TestPagesOfTheDoorAreForLocalhost: not for a name that somebody gave to this address.
func TestPagesOfTheDoorAreForLocalhost(t *testing.T) {
	f, err := front.New(front.Options{Decoder: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Planner: &front.Plugin{}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for host, want := range map[string]int{
		"localhost:8012": http.StatusOK, "127.0.0.1:8012": http.StatusOK, "[::1]:8012": http.StatusOK, "LocalHost": http.StatusOK, "Mac:8012": http.StatusOK,
		"evil.example:8012": http.StatusForbidden, "evil.example": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/pdlink/transfers", nil)
		r.Host, r.RemoteAddr = host, "127.0.0.1:5000"
		w := httptest.NewRecorder()
		(&door{front: f, name: "mac"}).pages().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d", host, w.Code)
		}
	}
}

// TestWhatNetHTTPSays goes to the journal, without what a decoder sent.
func TestWhatNetHTTPSays(t *testing.T) {
	var b bytes.Buffer
	j := newJournal(newStreams(io.Discard, &b))
	log.New(httpLog{j}, "", 0).Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "secret", io.EOF)
	j.close()
	if got := b.String(); got != "pdlink: warning: front: Unsolicited response received on idle HTTP channel\n" {
		t.Errorf("%q", got)
	}
}

// placed is a listener at an address.
type placed struct {
	net.Listener
	addr net.TCPAddr
}

func (p placed) Addr() net.Addr { return &p.addr }

func TestAnOpenDoorIsWarnedOf(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": false, "::1": false, "::": true, "0.0.0.0": true, "10.0.0.5": true} {
		d := &door{listener: placed{addr: net.TCPAddr{IP: net.ParseIP(ip), Port: 8012}}}
		w := d.warnings()
		if (len(w) == 1) != want || want && !strings.Contains(w[0], "can use the decoder") {
			t.Errorf("%s: %q", ip, w)
		}
	}
	if w := (*door)(nil).warnings(); w != nil {
		t.Errorf("no door: %q", w)
	}
}
