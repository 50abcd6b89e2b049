package main

import (
	"slices"
	"strings"
	"testing"

	"pdlink/bridge"
)

// TestFlagsComplete: those with few values to them, those that are files to files, and no
// other to files.
func TestFlagsComplete(t *testing.T) {
	const files, none = ":0", ":4"
	for _, c := range []struct {
		args []string
		want []string // the values; empty: none
		ends string
	}{
		{[]string{"prefill", "--numerics", ""}, []string{"mlx-metal", "mlx-cpu", "ideal"}, none},
		{[]string{"prefill", "--encrypt", ""}, []string{"on", "256", "off"}, none},
		{[]string{"doctor", "prefill", "--numerics", ""}, []string{"mlx-metal", "mlx-cpu", "ideal"}, none},
		{[]string{"decode", "--listen", ""}, []string{"tcp://", "unix://", "rdma://"}, ":6"},
		{[]string{"prefill", "--to", "r"}, []string{"rdma://"}, ":6"},
		{[]string{"replay", "--to", "t"}, []string{"tcp://"}, ":6"},
		{[]string{"replay", "--require", ""}, []string{"tcp", "rdma", "unix"}, none},
		{[]string{"replay", "--format", ""}, []string{"3", "4", "5"}, none},
		{[]string{"service", "print", "--system", ""}, []string{"systemd", "launchd"}, none},
		{[]string{"prefill", "--slots", ""}, nil, none},
		{[]string{"decode", "--min-tokens", ""}, nil, none},
		{[]string{"prefill", "--socket", ""}, nil, files},
		{[]string{"service", "print", "--program", ""}, nil, files},
		{[]string{"decode", "--store", ""}, nil, ":16"}, // directories
	} {
		status, out, _ := cli(t, append([]string{"__complete"}, c.args...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var got []string
		for _, line := range lines[:len(lines)-1] {
			value, _, _ := strings.Cut(line, "\t")
			got = append(got, value)
		}
		if end := lines[len(lines)-1]; status != exitOK || !slices.Equal(got, c.want) || end != c.ends {
			t.Errorf("%v: status %d: %q, want %q and %s", c.args, status, out, c.want, c.ends)
		}
	}
}

// TestVersionFlag: what everybody tries first.
func TestVersionFlag(t *testing.T) {
	if status, out, errOut := cli(t, "--version"); status != exitOK || out != "pdlink "+thisBuild().Version+"\n" || errOut != "" {
		t.Errorf("status %d: %q%s", status, out, errOut)
	}
}

// TestLinkOf: the link that carried it, not the one that was wished for.
func TestLinkOf(t *testing.T) {
	f := &replayFlags{url: linkURL{scheme: schemeRDMA}}
	j := &job{}
	if got := f.linkOf(j); got != schemeRDMA {
		t.Errorf("nothing was sent: %s", got)
	}
	j.sent.Links = []bridge.LinkUse{{Link: schemeRDMA, Bytes: 5}, {Link: schemeTCP, Bytes: 7}}
	if got := f.linkOf(j); got != schemeTCP {
		t.Errorf("%s", got)
	}
}
