package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	pass    = `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}` + "\n" + `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n"
	pkgOK   = `{"Action":"output","Package":"p","Output":"PASS\n"}` + "\n" + `{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
	skip    = `{"Action":"output","Package":"p","Test":"TestB","Output":"no device\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestB"}` + "\n"
	fail    = `{"Action":"output","Package":"p","Test":"TestC","Output":"got 1\n"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestC"}` + "\n"
	pkgFail = `{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		in      string
		allowed map[string]string
		good    bool
		want    string
	}{
		{"passes", pass + pkgOK, nil, true, "ok  \tp\t0.1s\n1 passed, 0 failed\n"},
		{"skip", pass + skip + pkgOK, nil, false,
			"no device\nok  \tp\t0.1s\nSKIP: p.TestB was skipped and is not on the list of tests that may be\n1 passed, 1 failed\n"},
		{"allowed skip", pass + skip + pkgOK, map[string]string{"p.TestB": "needs a device"}, true, "ok  \tp\t0.1s\n1 passed, 0 failed\n"},
		{"allowed without a reason", pass + skip, map[string]string{"p.TestB": ""}, false,
			"no device\nSKIP: p.TestB was skipped and is not on the list of tests that may be\n1 passed, 1 failed\n"},
		{"package without tests", pass + `{"Action":"skip","Package":"q"}` + "\n", nil, true, "1 passed, 0 failed\n"},
		{"failure is counted once", pass + fail + pkgFail, nil, false, "got 1\nFAIL\tp\t0.1s\n1 passed, 1 failed\n"},
		{"package fails without a test", pass + pkgFail, nil, false, "FAIL\tp\t0.1s\n1 passed, 1 failed\n"},
		{"panic shows the running test", `{"Action":"output","Package":"p","Test":"TestD","Output":"panic: x\n"}` + "\n" + pkgFail, nil, false,
			"FAIL\tp\t0.1s\npanic: x\n0 passed, 1 failed\n"},
		{"build error", `{"ImportPath":"p","Action":"build-output","Output":"x.go:1: bad\n"}` + "\n" + `{"ImportPath":"p","Action":"build-fail"}` + "\n" + pkgFail,
			nil, false, "x.go:1: bad\nFAIL\tp\t0.1s\n0 passed, 1 failed\n"},
		{"nothing ran", "", nil, false, "no test ran\n0 passed, 1 failed\n"},
		{"other lines pass through", "go: downloading\n" + pass, nil, true, "go: downloading\n1 passed, 0 failed\n"},
		{"last line without an end", pass + "trailer", nil, true, "trailer1 passed, 0 failed\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			good, err := summarize(strings.NewReader(tt.in), &out, tt.allowed)
			if err != nil {
				t.Fatal(err)
			}
			if good != tt.good || out.String() != tt.want {
				t.Errorf("got %v and %q, want %v and %q", good, out.String(), tt.good, tt.want)
			}
		})
	}
}

func TestSummarizeErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("cut")
	if _, err := summarize(iotest.ErrReader(cause), io.Discard, nil); !errors.Is(err, cause) {
		t.Errorf("reading: got %v, want %v", err, cause)
	}
	if good, err := summarize(strings.NewReader(pass), failingWriter{cause}, nil); !errors.Is(err, cause) || good {
		t.Errorf("writing: got %v and %v, want false and %v", good, err, cause)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestAllowedHasReasons(t *testing.T) {
	t.Parallel()
	for name, reason := range allowed() {
		if len(strings.Fields(reason)) < 3 {
			t.Errorf("%s: %q does not say why the test cannot run", name, reason)
		}
	}
}
