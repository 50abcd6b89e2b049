package linkkeys

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"pdlink/tools/cmdline"
	"pdlink/transport/keys"
)

// Env is the environment variable that names the directory of keys where no flag
// does.
const Env = "PDLINK_KEYS"

// otherEnv is what Env is taken to be called, since the flag of `pdlink keys` is --dir.
const otherEnv = Env + "_DIR"

// ErrVariable is returned where an environment variable would be passed over that was
// meant to name the directory.
var ErrVariable = errors.New("linkkeys: no such variable")

// Dir is a directory of keys and how a command line came by it.
type Dir struct {
	Path string

	// Named says that a flag named it: other commands need that flag too.
	Named bool

	env bool // $PDLINK_KEYS named it
}

// DirOf returns the directory that a flag's value means: itself, else $PDLINK_KEYS,
// else keys.DefaultDir. ~/ at its beginning is this user's home directory. It fails where
// the system has no such place, and with ErrVariable for a variable that has another name.
func DirOf(flag string) (Dir, error) {
	if flag != "" {
		return Dir{Path: flag, Named: true}, nil
	}
	if dir := os.Getenv(Env); dir != "" {
		path, err := cmdline.Home(dir)
		if err != nil {
			return Dir{}, fmt.Errorf("$%s: %w", Env, err)
		}
		return Dir{Path: path, env: true}, nil
	}
	if os.Getenv(otherEnv) != "" {
		return Dir{}, fmt.Errorf("%w: $%s: the directory of keys is $%s", ErrVariable, otherEnv, Env)
	}
	dir, err := keys.DefaultDir()
	if err != nil {
		return Dir{}, fmt.Errorf("%w: name a directory with $%s", err, Env)
	}
	return Dir{Path: dir}, nil
}

// String is the directory for a message, with the variable that named it.
func (d Dir) String() string {
	if d.env {
		return d.Path + " ($" + Env + ")"
	}
	return d.Path
}

// Command is a command line of `pdlink keys` for the directory, in quotes for a
// message.
func (d Dir) Command(args string) string {
	if d.Named {
		args += d.Flag()
	}
	return "`pdlink keys " + args + "`"
}

// Flag is what other commands of `pdlink keys` need for the directory, with a space
// in front; "" where they find it by themselves.
func (d Dir) Flag() string {
	if !d.Named {
		return ""
	}
	return " --dir " + keys.ShellPath(d.Path)
}

// elsewhere says how keys in another directory are named, where nobody named one.
func (d Dir) elsewhere() string {
	if d.Named || d.env {
		return ""
	}
	return ", or name the directory of one with --keys or $" + Env
}

// nameless is what a host is called whose name cannot be had or used.
const nameless = "peer"

// OwnName returns what other hosts are to call this one: what is kept in a directory of
// keys, else HostName. Errors: those of keys.LoadName.
func OwnName(dir string) (string, error) {
	name, err := keys.LoadName(dir)
	if name == "" && err == nil {
		name = HostName()
	}
	return name, err
}

// HostName returns this host's name, as far as it may be a peer's.
func HostName() string {
	host, err := os.Hostname()
	if err != nil {
		return nameless
	}
	return peerName(host)
}

// peerName makes a peer's name of a host's.
func peerName(host string) string {
	name, _, _ := strings.Cut(host, ".")
	name = strings.Map(func(r rune) rune {
		if keys.CheckName("a"+string(r)) == nil {
			return r
		}
		return '-'
	}, name)
	name = strings.Trim(name, "-_")
	if keys.CheckName(name) != nil {
		return nameless
	}
	return name
}

// PairCommand is the command line that makes another host know this key by a
// name, without quotes: it is there to be pasted.
func PairCommand(name string, key keys.PublicKey) string {
	return "pdlink keys pair " + name + " " + key.String()
}
