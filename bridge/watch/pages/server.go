package pages

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"pdlink/bridge/watch"
)

// files are what a browser loads.
//
//go:embed page
var files embed.FS

// Options of a Server. Watch is required.
type Options struct {
	Watch *watch.Watch

	// Metrics is what /metrics serves. Nil: there is no such page.
	Metrics http.Handler

	// Checks have to succeed for the process to be ready. None: it is.
	Checks []Check

	// Token is what a client has to say, as a bearer token or as the password of any user.
	// Without it /healthz and whether it is ready can be read, and nothing else. Empty:
	// everybody may read everything.
	Token string

	every, check, read, write time.Duration // tests shorten them
	conns                     int           // and this bound
}

// Server serves what doc.go lists. It may be used concurrently.
type Server struct {
	o      Options
	hub    *hub
	health health
	local  bool // the listener is on loopback
	http   *http.Server

	ending sync.Once
	served chan error // how serving ended; capacity 1
	ended  error      // of Close
}

// New returns a server that does not listen yet.
func New(o Options) *Server {
	if o.Metrics == nil {
		o.Metrics = http.NotFoundHandler()
	}
	if o.every <= 0 {
		o.every = tick
	}
	if o.check <= 0 {
		o.check = checkTime
	}
	if o.read <= 0 {
		o.read = readTime
	}
	if o.write <= 0 {
		o.write = writeTime
	}
	if o.conns <= 0 {
		o.conns = maxConns
	}
	s := &Server{o: o, health: newHealth(o.Checks, o.check)}
	s.hub = newHub(s.look, o.every)
	s.http = &http.Server{
		Handler: s.handler(), ReadTimeout: o.read, WriteTimeout: answerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ConnContext: withGuest,
		ErrorLog:    log.New(io.Discard, "", 0), // what a client does wrong is its own business
	}
	return s
}

// Ready tells whether all checks succeed now; it takes a second at the most.
func (s *Server) Ready() bool { return len(s.health.lacks()) == 0 }

// Serve serves on l, which it owns from then on, until Close. It returns at once.
func (s *Server) Serve(l net.Listener) {
	if a, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
		s.local = a.Addr().Unmap().IsLoopback()
	}
	s.served = make(chan error, 1)
	go func() { s.served <- s.http.Serve(newHouse(l, s.o.conns)) }()
}

// Close ends the pages that are open and closes the listener. It is idempotent.
func (s *Server) Close() error {
	s.ending.Do(func() {
		s.hub.close()
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if s.http.Shutdown(ctx) != nil { // answers that take longer are cut
			s.ended = s.http.Close()
		}
		if s.served == nil {
			return
		}
		if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
			s.ended = errors.Join(s.ended, err)
		}
	})
	return s.ended
}

func (s *Server) look() shownState {
	x := shownState{State: s.o.Watch.State(), Lacks: s.health.lacks()}
	x.Ready = len(x.Lacks) == 0
	x.Trim()
	return x
}

// policy is what a browser may do with the page: load what this server has, and nothing
// else; no script or style in the text of the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// handler is all pages.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, kind string }{
		"GET /{$}":       {"index.html", "text/html; charset=utf-8"},
		"GET /watch.js":  {"watch.js", "text/javascript; charset=utf-8"},
		"GET /watch.css": {"watch.css", "text/css; charset=utf-8"},
		"GET /icon.svg":  {"icon.svg", "image/svg+xml"},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			b, err := files.ReadFile("page/" + file.name)
			if err != nil { // the test asks for each
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", file.kind)
			w.Write(b) //nolint:errcheck // a client that is gone needs no answer
		})
	}
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(s.look()) //nolint:errcheck // the same
	})
	mux.HandleFunc("GET /events", s.events)
	mux.Handle("GET /metrics", s.o.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, "ok\n") //nolint:errcheck // the same
	})
	mux.HandleFunc("GET /readyz", s.ready)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer attend(r)()
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.ContentLength != 0: // nobody waits for what no page wants
			h.Set("Connection", "close")
			http.Error(w, "no page here takes a body", http.StatusRequestEntityTooLarge)
		case s.local && !ownName(r.Host):
			http.Error(w, "this address is for localhost", http.StatusForbidden)
		case !s.allowed(r) && r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
			h.Set("WWW-Authenticate", `Basic realm="pdlink", charset="UTF-8"`)
			http.Error(w, "this page needs the token of --metrics-token: as a bearer token, or as the password of any user", http.StatusUnauthorized)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// allowed reports whether a request has the token, where there is one.
func (s *Server) allowed(r *http.Request) bool {
	if s.o.Token == "" {
		return true
	}
	_, said, ok := r.BasicAuth()
	if !ok {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return false
		}
		said = strings.TrimSpace(token)
	}
	a, b := sha256.Sum256([]byte(said)), sha256.Sum256([]byte(s.o.Token)) // of one length, whatever was said
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// ownName reports whether a Host header can be meant for a server on loopback: not a name
// that somebody else's server can give to this address, to read it in a browser here.
func ownName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	lacks := s.health.lacks()
	if len(lacks) > 0 && !s.allowed(r) {
		lacks = []string{"not ready"} // why has names in it
	}
	if len(lacks) == 0 {
		io.WriteString(w, "ready\n") //nolint:errcheck // a client that is gone needs no answer
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	io.WriteString(w, strings.Join(lacks, "\n")+"\n") //nolint:errcheck // the same
}

// events tells one page of states until it goes away, reads too slowly, or the server
// closes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	states, leave := s.hub.join()
	if states == nil {
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "enough pages are open", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy in front must not gather them
	to := http.NewResponseController(w)
	// The request is read: what was its time must not end what is written from now on.
	if to.SetReadDeadline(time.Time{}) != nil || to.SetWriteDeadline(time.Now().Add(s.o.write)) != nil || to.Flush() != nil {
		return
	}
	for {
		select {
		case b := <-states:
			if to.SetWriteDeadline(time.Now().Add(s.o.write)) != nil {
				return
			}
			if _, err := w.Write(event(b)); err != nil || to.Flush() != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.hub.over:
			return
		}
	}
}

// event is a state as an event.
func event(b []byte) []byte {
	out := append(make([]byte, 0, len(b)+8), "data: "...)
	return append(append(out, b...), "\n\n"...)
}
