package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
)

const keysLong = `keys makes and shows this host's key and says which hosts it talks to. Two hosts
trust each other when each has the other's public key; no names, addresses or
authorities are involved, and data between them is sealed.

  on one host    pdlink keys init             prints a line to paste on the other
  on the other   pdlink keys pair NAME KEY    that line; prints one to paste back
  on the first   pdlink keys pair NAME KEY    that line

NAME is what a host calls the other one, for itself. The files are in one directory:
--dir (--keys of other commands), else $` + linkkeys.Env + `, else pdlink in the user's configuration directory.
"identity" is the private key: it never leaves the host, and nobody else may read it.
"peers" has one NAME and public key a line, "name" what other hosts are to call this
one, if init or pair were told.`

// identity loads the private key of a directory.
func identity(dir linkkeys.Dir) (*keys.Identity, error) {
	id, err := keys.LoadIdentity(dir.Path)
	if errors.Is(err, keys.ErrNoIdentity) {
		err = fmt.Errorf("%w in %s: make one with %s", keys.ErrNoIdentity, dir, dir.Command("init"))
	}
	return id, keysError(err)
}

// keysError sorts the errors of package keys: those that the user mends are of
// the input.
func keysError(err error) error {
	if err == nil {
		return nil
	}
	err = linkkeys.Mend(err)
	for _, mendable := range []error{
		keys.ErrNoIdentity, keys.ErrIdentityExists, keys.ErrUnknownPeer, keys.ErrPeerExists, keys.ErrBadKey, keys.ErrBadFile, keys.ErrPermissions,
		keys.ErrLocked, linkkeys.ErrVariable,
	} {
		if errors.Is(err, mendable) {
			return err
		}
	}
	return failed(err)
}

// rejects tells of peers that a listener turned away. A program of this host with its own
// key is no peer that lacks anything.
func (j *journal) rejects(own *linkkeys.Choice) func(remote string, err error) {
	return func(remote string, err error) {
		if own.Own(err) && ofThisHost(remote) {
			j.add(entry{func() {
				j.std.notef("pdlink: %s has this host's own key: `pdlink doctor` looked whether this runs, or another program here did\n", remote)
			}, kindOf(err)})
			return
		}
		j.dropped(remote, own.Explain(err))
	}
}

// ofThisHost reports that what a listener calls the other end of a connection is on this
// host: one without an address is at a Unix socket.
func ofThisHost(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return true
	}
	ip := at.Addr().Unmap().WithZone("")
	_, here := interfaceOf(ip)
	return here || ip.IsLoopback()
}

// keysFlags are the flags that the commands of `pdlink keys` share.
type keysFlags struct {
	dir    string
	asJSON bool
}

func newKeys(std streams) *cobra.Command {
	f := &keysFlags{}
	c := &cobra.Command{
		Use:   "keys",
		Short: "make this host's key, and say which hosts it talks to",
		Long:  keysLong + "\n\n" + statusText,
		Args:  group,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	fl := c.PersistentFlags()
	fl.StringVar(&f.dir, "dir", "", "the directory of keys, `DIR` (default $"+linkkeys.Env+", else pdlink in the user's configuration directory)")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	must(c.MarkPersistentFlagDirname("dir"))
	c.AddCommand(newKeysInit(std, f), newKeysShow(std, f), newKeysPair(std, f), newKeysList(std, f), newKeysRevoke(std, f))
	return c
}

// where returns the directory that a command line means.
func (f *keysFlags) where(c *cobra.Command) (linkkeys.Dir, error) {
	if err := flagsOf(c).filled(map[string]string{"dir": f.dir}); err != nil {
		return linkkeys.Dir{}, err
	}
	return linkkeys.DirOf(f.dir)
}

// whereAs is where for a command that takes this host's name too.
func (f *keysFlags) whereAs(c *cobra.Command, name string) (linkkeys.Dir, error) {
	if err := flagsOf(c).filled(map[string]string{"name": name}); err != nil {
		return linkkeys.Dir{}, err
	}
	if name != "" {
		if err := keys.CheckName(name); err != nil {
			return linkkeys.Dir{}, fmt.Errorf("--name: %w", err)
		}
	}
	return f.where(c)
}

// ownKey is what `pdlink keys init` and `pdlink keys show` print as JSON.
type ownKey struct {
	Dir     string `json:"dir"`
	Name    string `json:"name"` // that the other host is to give this one
	Key     string `json:"key"`
	Command string `json:"command"` // to paste on the other host
}

// ownKeyOf describes this host's key. name is what the user wants other hosts
// to call this one; "" is what was said earlier, else the host's own name.
func ownKeyOf(dir linkkeys.Dir, name string, key keys.PublicKey) (ownKey, error) {
	if name == "" {
		var err error
		if name, err = linkkeys.OwnName(dir.Path); err != nil {
			return ownKey{}, keysError(err)
		}
	}
	return ownKey{dir.Path, name, key.String(), linkkeys.PairCommand(name, key)}, nil
}

// keepName remembers --name for the commands that come later.
func keepName(ctx context.Context, dir linkkeys.Dir, name string) error {
	if name == "" {
		return nil
	}
	return keysError(keys.SaveName(ctx, dir.Path, name))
}

// nameFlag adds --name.
func nameFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "name", "", "what other hosts are to call this one, `NAME` (default: what init or pair were told, else the host's name)")
	must(c.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions))
}

func newKeysInit(std streams, f *keysFlags) *cobra.Command {
	var name string
	var replace bool
	c := &cobra.Command{
		Use:   "init",
		Short: "make this host's private key",
		Long: `init makes this host's private key and prints one line: the command that makes
another host know this one. Run it there.

A key that is there stays, unless --replace is given: then every peer has to
revoke the old key and pair again.

` + statusText,
		Example: `  pdlink keys init
  pdlink keys init --name spark1`,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := f.whereAs(c, name)
			if err != nil {
				return err
			}
			return keysInit(c.Context(), std, dir, name, replace, f.asJSON)
		},
	}
	nameFlag(c, &name)
	c.Flags().BoolVar(&replace, "replace", false, "make a new key in the place of the one that is there")
	return c
}

func keysInit(ctx context.Context, std streams, dir linkkeys.Dir, name string, replace, asJSON bool) error {
	id, err := keys.Init(ctx, dir.Path, replace)
	if errors.Is(err, keys.ErrIdentityExists) {
		return fmt.Errorf("%w; %s prints its public key, --replace makes another one all the same", err, dir.Command("show"))
	}
	if err != nil {
		return keysError(err)
	}
	if err := keepName(ctx, dir, name); err != nil {
		return err
	}
	own, err := ownKeyOf(dir, name, id.Public())
	if err != nil {
		return err
	}
	if asJSON {
		return std.json(own)
	}
	std.notef("made a private key in %s; paste this line on the other host:\n", dir.Path)
	std.printf("%s\n", own.Command)
	return nil
}

func newKeysShow(std streams, f *keysFlags) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "show",
		Short: "print the line that makes another host know this one",
		Long: `show prints one line: the command that makes another host know this one. The key
in it is public; what counts is that it gets there unchanged.

` + statusText,
		Example: `  pdlink keys show
  pdlink keys show --name spark1 | ssh decode-host sh`,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := f.whereAs(c, name)
			if err != nil {
				return err
			}
			id, err := identity(dir)
			if err != nil {
				return err
			}
			own, err := ownKeyOf(dir, name, id.Public())
			if err != nil {
				return err
			}
			if f.asJSON {
				return std.json(own)
			}
			std.printf("%s\n", own.Command)
			return nil
		},
	}
	nameFlag(c, &name)
	return c
}
