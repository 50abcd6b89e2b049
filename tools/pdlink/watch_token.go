package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/bridge/watch/pages"
	"pdlink/tools/cmdline"
	"pdlink/transport/keys"
)

// The flags that say who may see the live page and the figures.
const (
	tokenFlag = "metrics-token"
	openFlag  = "metrics-open"
)

const (
	// leastToken is the shortest token, in characters: nobody finds it by trying.
	leastToken = 16

	// maxToken bounds the file that has it.
	maxToken = 4 << 10
)

// registerToken adds the flags to a command.
func (f *watchFlags) registerToken(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.token, tokenFlag, "", "with --metrics: who reads it has to say what `FILE` has, as a bearer token or as the password of any user; /healthz and the status of /readyz need none")
	fl.BoolVar(&f.everybody, openFlag, false, "with --metrics: other hosts may read it without a token")
	must(c.MarkFlagFilename(tokenFlag))
	cmdline.OnlyWith(c, []string{tokenFlag, openFlag}, "metrics")
}

// checkToken looks at the flags.
func (f *watchFlags) checkToken(g given) error {
	switch {
	case f.metrics == "":
		return g.unused("is for --metrics", tokenFlag, openFlag)
	case f.token != "" && f.everybody:
		return errors.New("--metrics-token and --metrics-open exclude each other: leave one out")
	}
	return nil
}

// readToken reads the token; "" where there is none.
func (f *watchFlags) readToken() (string, error) {
	if f.token == "" {
		return "", nil
	}
	b, err := cmdline.ReadFile(f.token, maxToken, hidden)
	if err != nil {
		return "", unusable(fmt.Errorf("--metrics-token: %w", err))
	}
	token := strings.TrimSpace(string(b))
	if len(token) < leastToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", unusable(fmt.Errorf("--metrics-token %s: want one line of %d or more letters, digits and signs: make it with `(umask 077; openssl rand -hex 32 >%s)`",
			f.token, leastToken, f.token))
	}
	return token, nil
}

// hidden refuses a token's file that everybody on this host can read, or somebody else
// could have written.
func hidden(f *os.File) error {
	if err := trusted(f); err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || !worldReads(fi) {
		return err
	}
	return fmt.Errorf("everybody can read %s (mode %04o): run `chmod o-r %s`", f.Name(), fi.Mode().Perm(), keys.ShellPath(f.Name()))
}

// reach refuses a listener that other hosts can reach, unless it was said who of them may
// read; what is open to all of them is warned of.
func (f *watchFlags) reach(l net.Listener, j *journal) error {
	switch {
	case !pages.Reachable(l) || f.token != "":
		return nil
	case !f.everybody:
		return unusable(fmt.Errorf("--metrics %s: other hosts can reach this address, where names of models, peers and the store are: "+
			"give --metrics-token FILE, or --metrics-open if everybody may read them", f.metrics))
	}
	j.say("pdlink: warning: --metrics %s: other hosts can reach this address, and whoever does sees names of models, peers and the store (--metrics-open)\n", pages.URL(l))
	return nil
}
