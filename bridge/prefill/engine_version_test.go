package prefill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]error{
		"0.21.0": nil, "0.28.1": nil, "0.32.0": nil, "0.32": nil, "0.32.1.dev3+g0123": nil,
		"0.22.0": ErrUntested, "0.31.2": ErrUntested, "0.33.0": ErrUntested,
		"0.20.2": ErrVersion, "0.34.0": ErrVersion, "0.3.2": ErrVersion, "1.32.0": ErrVersion, "v0.32.0": ErrVersion, "": ErrVersion,
		"0.99999999999999999999.0": ErrVersion,
	} {
		err := CheckVersion(version)
		if !errors.Is(err, want) || (want == ErrVersion) == errors.Is(err, ErrUntested) && err != nil { //nolint:errorlint // which of the two is wanted
			t.Errorf("%q: %v, want %v", version, err, want)
		}
	}
}

// TestVersionsAreTheConnectors: this end refuses what that one does.
func TestVersionsAreTheConnectors(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "vllm", "pdlink_vllm", "engine.py"))
	must(t, err)
	var tested []int
	for _, m := range regexp.MustCompile(`(?m)^    Adapter\((\d+),`).FindAllSubmatch(b, -1) {
		n, err := strconv.Atoi(string(m[1]))
		must(t, err)
		tested = append(tested, n)
	}
	if !slices.Equal(tested, testedMinors()) {
		t.Errorf("the connector was tested with %v, and this end says %v", tested, testedMinors())
	}
	if m := regexp.MustCompile(`(?m)^NEWEST = (\d+)\b`).FindSubmatch(b); len(m) != 2 || string(m[1]) != strconv.Itoa(newestMinor) {
		t.Errorf("the newest is %q there, and %d here", m, newestMinor)
	}
}

// TestEngineVersion: what a server says, and that one may not say it.
func TestEngineVersion(t *testing.T) {
	for answer, want := range map[string]string{`{"version":"0.32.0"}`: "0.32.0", `{"version":"0.1\n2"}`: "0.1 2", `{}`: "", `[]`: "", ``: ""} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/version" {
				t.Errorf("asked for %s", r.URL)
			}
			if answer == "" {
				w.WriteHeader(http.StatusNotFound)
			}
			fmt.Fprint(w, answer)
		}))
		base, err := url.Parse(s.URL)
		must(t, err)
		v := NewVLLM(base, "")
		got, err := v.Version(context.Background())
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", answer, got, err)
		}
		v.Close()
		s.Close()
	}
}
