package plugin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"pdlink/bridge/omlx"
)

// TestClient: each call goes where API.md has it, with the key of the request alone, and
// what is answered is read.
func TestClient(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("Cookie")+" "+string(body))
		switch r.URL.Path {
		case "/base/pdlink/v1/info":
			w.Write(example(t, "info.json"))
		case "/base/pdlink/v1/plan":
			w.Write(example(t, "plan.json"))
		default:
			io.WriteString(w, `{"blocks":1}`)
		}
	}))
	defer s.Close()
	u, err := url.Parse(s.URL + "/base")
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(u, s.Client())
	h := http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"x"}, "Cookie": {"no"}}
	status, err := c.Status(t.Context(), nil)
	if err != nil || status.Plugin == "" || len(status.Decoder) == 0 || len(status.Plans) == 0 {
		t.Errorf("%+v, %v", status, err)
	}
	if info, err := c.Info(t.Context(), h, "a b"); err != nil || info.Model.Layout == "" {
		t.Errorf("%+v, %v", info, err)
	}
	if p, err := c.Plan(t.Context(), h, "/v1/completions", []byte("{}"), true); err != nil || p.Blocks == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if err := c.Load(t.Context(), nil, "m"); err != nil {
		t.Error(err)
	}
	if a, err := c.Adopt(t.Context(), h, AdoptCall{Model: "m", Hashes: make([]omlx.Hash, 1)}); err != nil || a.Blocks != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	for i, want := range []string{
		"GET /base/pdlink/v1/info  ",
		"GET /base/pdlink/v1/info?model=a+b Bearer kx ",
		"POST /base/pdlink/v1/plan?path=%2Fv1%2Fcompletions&tail=1 Bearer kx {}",
		`POST /base/pdlink/v1/plan?path=%2Fv1%2Fcompletions  {"max_tokens":1,"model":"m","prompt":"hello"}`,
		`POST /base/pdlink/v1/adopt Bearer kx {"model":"m"`,
	} {
		if i >= len(asked) || !strings.HasPrefix(asked[i], want) {
			t.Errorf("call %d of %q, want %q", i, asked, want)
		}
	}
}

// TestClientRefused: each way in which the plug-in does not do what it is asked.
func TestClientRefused(t *testing.T) {
	status, body := 0, ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(u, s.Client())
	ask := func(st int, text string) error {
		status, body = st, text
		_, err := c.Status(t.Context(), nil)
		return err
	}
	var r *RefusedError
	if err := ask(http.StatusNotFound, `{"error":{"code":"moved","message":"no place"}}`); !errors.As(err, &r) || r.Code != "moved" || err.Error() != "no place" {
		t.Errorf("refused: %v", err)
	}
	for _, x := range []struct {
		status int
		body   string
		is     error
	}{
		{http.StatusNotFound, "no such page", ErrNone},
		{http.StatusUnauthorized, "", ErrUnauthorized},
		{http.StatusForbidden, `{"error":"key"}`, ErrUnauthorized},
		{http.StatusOK, "{", ErrAnswer},
		{http.StatusOK, `{"api":2}`, ErrAnswer},
	} {
		if err := ask(x.status, x.body); !errors.Is(err, x.is) {
			t.Errorf("%d %s: %v, want %v", x.status, x.body, err, x.is)
		}
	}
	if err := ask(http.StatusBadGateway, ""); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("another: %v", err)
	}
	s.Close()
	if err := ask(0, ""); err == nil {
		t.Error("nobody answers, and no error is told")
	}
}

// TestClientOfARestartedDecoder: a call over a connection that the decoder ends just then
// is made again over another one.
func TestClientOfARestartedDecoder(t *testing.T) {
	calls := map[string]int{} // by connection
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		calls[r.RemoteAddr]++
		again := calls[r.RemoteAddr] > 1
		mu.Unlock()
		if again {
			panic(http.ErrAbortHandler) // the request has come, and no answer goes
		}
		if _, sent := r.Header["X-Idempotency-Key"]; sent {
			t.Error("the mark for the transport is sent")
		}
		if len(body) == 0 {
			t.Error("the body did not come")
		}
		io.WriteString(w, `{"blocks":1}`)
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(u, s.Client())
	for range 3 {
		if a, err := c.Adopt(t.Context(), nil, AdoptCall{Model: "m", Hashes: make([]omlx.Hash, 1)}); err != nil || a.Blocks != 1 {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if len(calls) != 3 {
		t.Errorf("%d connections, want a new one after each that was cut", len(calls))
	}
}

// early is a transport that answers before it has read a body.
type early struct{ bodies []io.ReadCloser }

// RoundTrip implements http.RoundTripper.
func (e *early) RoundTrip(r *http.Request) (*http.Response, error) {
	again, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	if b, err := io.ReadAll(again); err != nil || string(b) != "a prompt" || r.ContentLength != int64(len(b)) {
		return nil, errors.New("another body")
	}
	e.bodies = append(e.bodies, again, r.Body)
	w := httptest.NewRecorder()
	w.WriteHeader(http.StatusTeapot)
	return w.Result(), nil
}

// TestClientDoesNotKeepBodies: a body is its caller's again when the call has returned,
// whatever the transport still does with it.
func TestClientDoesNotKeepBodies(t *testing.T) {
	e := &early{}
	c := NewClient(&url.URL{Scheme: "http", Host: "x"}, &http.Client{Transport: e})
	if _, err := c.Plan(t.Context(), nil, "/v1/completions", []byte("a prompt"), false); err == nil || !strings.Contains(err.Error(), "418") {
		t.Fatal(err)
	}
	for _, b := range e.bodies {
		if n, err := b.Read(make([]byte, 10)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}
