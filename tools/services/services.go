// Package services has the files by which systemd and launchd start the programs that
// run all the time. They are complete but for the program's path, the user and, where it
// is not the user's own, the config file: what a service does is in that, so a unit need
// not be edited.
package services

import (
	"embed"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
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
	Env     string   // the file of its environment variables, for root to write; "": there is none
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
			"journalctl -u pdlink-" + service, "/etc/pdlink/" + service + ".env", name,
		})
	}
	const plist = "pdlink.decode.plist"
	const place = "/Library/LaunchDaemons/" + plist
	return append(all, Unit{
		"decode", Launchd, place, []string{"sudo launchctl bootstrap system " + place}, "tail -f @HOME@/Library/Logs/pdlink-decode.log", "", plist,
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
	Config  string // absolute path of the config file; "": the user's own

	// Writable are directories that the service writes beside those that its unit
	// has by itself: absolute paths. Only systemd's units keep others from it.
	Writable []string
}

// check refuses what would mean something else in one of the files.
func (h Host) check() error {
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`).MatchString(h.User) {
		return fmt.Errorf("user %q: want a name of letters, digits, '_', '-' and '.'", h.User)
	}
	paths := []string{h.Program, h.Home}
	if h.Config != "" {
		paths = append(paths, h.Config)
	}
	paths = append(paths, h.Writable...)
	for _, path := range paths {
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
	writable := ""
	for _, dir := range h.Writable {
		writable += `ReadWritePaths="` + dir + "\"\n"
	}
	flags, config := "", u.ConfigOf(h)
	if h.Config != "" {
		flags = ` --config "` + h.Config + `"`
	}
	if u.System == Launchd {
		escape = func(s string) string {
			var out strings.Builder
			xml.EscapeText(&out, []byte(s)) //nolint:errcheck // a Builder takes all
			return out.String()
		}
		if flags != "" {
			flags = "\n\t\t<string>--config</string>\n\t\t<string>" + escape(h.Config) + "</string>"
		}
		config = strings.ReplaceAll(config, "--", "- -") // it stands in a comment
	}
	return strings.NewReplacer("@PROGRAM@", escape(h.Program), "@USER@", escape(h.User), "@HOME@", escape(h.Home),
		"@FLAGS@", flags, "@CONFIG@", escape(config), "@WRITABLE@", writable).Replace(string(b)), nil
}

// ConfigOf is the config file that the service reads on a host.
func (u Unit) ConfigOf(h Host) string {
	if h.Config != "" {
		return h.Config
	}
	return filepath.Join(h.Home, u.ownConfig())
}

// ownConfig is the user's own config file, below the home directory.
func (u Unit) ownConfig() string {
	if u.System == Launchd {
		return "Library/Application Support/pdlink/config.toml"
	}
	return ".config/pdlink/config.toml"
}

// Shortlived reports that a program's path is one that does not stay: what `go run` made,
// a directory of temporary files, which a service does not even see, or one that a
// build cleans.
func Shortlived(path string) bool {
	for _, part := range strings.Split(filepath.ToSlash(path), "/") {
		if strings.HasPrefix(part, "go-build") || part == ".build" {
			return true
		}
	}
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if rest, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rest) {
			return true
		}
	}
	return false
}

// LogCommand is the command that shows what the service says on a host.
func (u Unit) LogCommand(h Host) string { return strings.ReplaceAll(u.Log, "@HOME@", h.Home) }

// HomeOf is where the home directory of a user most likely is that this host does not
// have.
func HomeOf(system, name string) string {
	switch {
	case name == "root" && system == Launchd:
		return "/var/root"
	case name == "root":
		return "/root"
	case system == Launchd:
		return "/Users/" + name
	}
	return "/home/" + name
}
