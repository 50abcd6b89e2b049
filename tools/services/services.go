// Package services has the files by which systemd and launchd start the programs that
// run all the time. They are complete but for the program's path and the user; what a
// service does is in the user's config file, so a unit need not be edited.
package services

import (
	"embed"
	"encoding/xml"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed *.service *.plist
var files embed.FS

// The service managers.
const (
	Systemd = "systemd"
	Launchd = "launchd"
)

// ErrNone is returned for a service that a service manager has no file for.
var ErrNone = errors.New("services: no such service")

// Unit is the file of one service. It is immutable.
type Unit struct {
	Service string   // the command of pdlink that it runs
	System  string   // Systemd or Launchd
	Place   string   // where the file belongs
	Start   []string // the commands that start it from there, and have it start with the system
	Log     string   // the command that shows what it says; @HOME@ stands for the user's home
	name    string
}

// Units returns all of them. A Mac does not prefill.
func Units() []Unit {
	var all []Unit
	for _, service := range []string{"decode", "prefill"} {
		name := "pdlink-" + service + ".service"
		all = append(all, Unit{
			service, Systemd, "/etc/systemd/system/" + name,
			[]string{"sudo systemctl daemon-reload", "sudo systemctl enable --now pdlink-" + service},
			"journalctl -u pdlink-" + service, name,
		})
	}
	const plist = "pdlink.decode.plist"
	const place = "/Library/LaunchDaemons/" + plist
	return append(all, Unit{
		"decode", Launchd, place, []string{"sudo launchctl bootstrap system " + place}, "tail -f @HOME@/Library/Logs/pdlink-decode.log", plist,
	})
}

// Find returns the unit of a service. Errors: ErrNone, with those that there are.
func Find(service, system string) (Unit, error) {
	var have []string
	for _, u := range Units() {
		if u.Service == service && u.System == system {
			return u, nil
		}
		have = append(have, u.Service+" of "+u.System)
	}
	return Unit{}, fmt.Errorf("%w: %s of %s: there are %s", ErrNone, service, system, strings.Join(have, ", "))
}

// Host is what a unit has to know of a host.
type Host struct {
	Program string // pdlink's absolute path
	User    string // that it runs as
	Home    string // the user's home directory
}

// check refuses what would mean something else in one of the files.
func (h Host) check() error {
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`).MatchString(h.User) {
		return fmt.Errorf("user %q: want a name of letters, digits, '_', '-' and '.'", h.User)
	}
	for _, path := range []string{h.Program, h.Home} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q: want an absolute one", path)
		}
		if i := strings.IndexFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune("\"\\%$'", r) }); i >= 0 {
			return fmt.Errorf("path %q: the character %q cannot stand in a service file: use another path", path, path[i])
		}
	}
	return nil
}

// Text returns the file for a host.
func (u Unit) Text(h Host) (string, error) {
	if err := h.check(); err != nil {
		return "", err
	}
	b, err := files.ReadFile(u.name)
	if err != nil {
		return "", fmt.Errorf("services: %w", err)
	}
	escape := func(s string) string { return s }
	if u.System == Launchd {
		escape = func(s string) string {
			var out strings.Builder
			xml.EscapeText(&out, []byte(s)) //nolint:errcheck // a Builder takes all
			return out.String()
		}
	}
	return strings.NewReplacer("@PROGRAM@", escape(h.Program), "@USER@", escape(h.User), "@HOME@", escape(h.Home)).Replace(string(b)), nil
}

// LogCommand is the command that shows what the service says on a host.
func (u Unit) LogCommand(h Host) string { return strings.ReplaceAll(u.Log, "@HOME@", h.Home) }
