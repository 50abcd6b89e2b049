package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pdlink/tools/linkkeys"
)

// TestLocalWithKeys: sealed, named, and nothing left behind.
func TestLocalWithKeys(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	for _, how := range []string{"on", "256"} {
		r := measured(t, quick("local", "--keys", "--encrypt", how)...)
		sound(t, r)
		if !r.Sealed || r.Peer != "listener" || r.Verified != r.Bytes {
			t.Errorf("%s: %+v", how, r)
		}
	}
	status, out, errOut := cli(t, quick("local", "--keys", "--encrypt", "off")...)
	if status != exitOK || !strings.Contains(out, ", in clear\n") || !strings.Contains(out, "(listener)\n") || strings.Count(errOut, "warning: --encrypt off") != 1 {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	if r := measured(t, quick("local")...); r.Sealed || r.Peer != "" {
		t.Errorf("without keys: %+v", r)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestServeAndRunWithKeys(t *testing.T) {
	dialler, listener, remove, err := linkkeys.Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--keys", listener, "--encrypt", "off")
	for _, flags := range [][]string{nil, {"--peer", "listener"}, {"--encrypt", "256"}} {
		r := measured(t, quick("run", append(flags, "--to", s.url, "--keys", dialler)...)...)
		sound(t, r)
		if !r.Sealed || r.Peer != "listener" { // one end alone cannot switch it off
			t.Errorf("%v: %+v", flags, r)
		}
	}
	for _, c := range []struct {
		flags  []string
		status int
		say    string
	}{
		{nil, exitUsage, "--keys DIR"},
		{[]string{"--keys", listener}, exitFailed, "pdlink keys "},
		{[]string{"--keys", t.TempDir()}, exitUsage, "pdlink keys init"},
		{[]string{"--keys", dialler, "--peer", "nobody"}, exitUsage, "pdlink keys list"},
	} {
		status, out, errOut := cli(t, quick("run", append(c.flags, "--to", s.url)...)...)
		if status != c.status || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %d and %q: %s%s", c.flags, status, c.status, c.say, out, errOut)
		}
	}
	if status := s.stop(); status != exitOK || strings.Count(s.err.String(), "warning: --encrypt off") != 1 {
		t.Errorf("status %d: %s", status, s.err.String())
	}
	for i, e := range s.events() {
		switch {
		case i == 0 && (e["keys"] != listener || e["encrypt"] != "off"):
			t.Errorf("%v", e)
		case e["event"] == "transfer" && (fmt.Sprintf("%v %v", e["peer"], e["sealed"]) != "dialler true"):
			t.Errorf("%v", e)
		}
	}
	if n := s.count("transfer"); n != 6 { // a warm-up is one too
		t.Errorf("%d transfers", n)
	}
}

// TestRunChoosesWhatIsSealed: one end that leaves it to the other, in clear and sealed.
func TestRunChoosesWhatIsSealed(t *testing.T) {
	dialler, listener, remove, err := linkkeys.Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--keys", listener, "--encrypt", "off")
	status, out, errOut := cli(t, quick("run", "--to", s.url, "--keys", dialler, "--links", "tcp,tcp+tls", "--json", "--reps", "2")...)
	all := results(t, out)
	if status != exitOK || len(all) != 4 || all[0].Sealed || !all[1].Sealed || !all[2].Sealed || all[3].Sealed {
		t.Errorf("status %d, %d results: %s", status, len(all), errOut)
	}
	if strings.Count(errOut, "warning: --encrypt off") != 1 {
		t.Errorf("said %s", errOut)
	}
	for _, c := range []struct {
		flags []string
		say   string
	}{
		{[]string{"--links", "tcp+tls", "--encrypt", "off"}, "contradict each other"},
		{[]string{"--links", "tcp", "--encrypt", "on"}, "serve it with --encrypt off, or name that link"},
	} {
		if status, out, errOut := cli(t, quick("run", append(c.flags, "--to", s.url, "--keys", dialler)...)...); status != exitFailed || !strings.Contains(out+errOut, c.say) {
			t.Errorf("%v: status %d: %s%s", c.flags, status, out, errOut)
		}
	}
}
