package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
)

// pairing is what `pdlink keys pair --json` prints.
type pairing struct {
	Dir  string `json:"dir"`
	Name string `json:"name"`
	Key  string `json:"key"`
	New  bool   `json:"new"` // the peer was not there before
	Back ownKey `json:"back"`
}

func newKeysPair(std streams, f *keysFlags) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "pair NAME KEY",
		Short: "talk to the host that has this key",
		Long: `pair adds a host to those that this one talks to. KEY is what "pdlink keys show"
prints there, NAME what this host calls it. Programs that run notice within
seconds.

The other host has to know this one too: pair prints the line to paste there, and
makes this host's own key first if there is none.

` + statusText,
		Example:           `  pdlink keys pair spark1 pdlink1…`,
		Args:              wants(2, "NAME", "KEY"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := f.whereAs(c, name)
			if err != nil {
				return err
			}
			return keysPair(c.Context(), std, dir, args[0], args[1], name, f.asJSON)
		},
	}
	nameFlag(c, &name)
	return c
}

func keysPair(ctx context.Context, std streams, dir linkkeys.Dir, name, text, own string, asJSON bool) error {
	if _, err := keys.ParsePublic(name); err == nil {
		return fmt.Errorf("%w: the peer's name comes first: `pdlink keys pair NAME KEY`", keys.ErrBadKey)
	}
	if err := keys.CheckName(name); err != nil {
		return err
	}
	key, err := keys.ParsePublic(text)
	if err != nil {
		return keysError(err)
	}
	before, err := keys.LoadPeers(dir.Path)
	if err != nil {
		return keysError(err)
	}
	id, made, err := ownIdentity(ctx, dir)
	if err != nil {
		return err
	}
	if id.Public() == key {
		return fmt.Errorf("%w: this is this host's own key: run the line on the other host, and here the line that it prints", keys.ErrBadKey)
	}
	p := keys.Peer{Name: name, Key: key}
	if err := keys.AddPeer(ctx, dir.Path, p); err != nil {
		return keysError(err)
	}
	if err := keepName(ctx, dir, own); err != nil {
		return err
	}
	back, err := ownKeyOf(dir, own, id.Public())
	if err != nil {
		return err
	}
	r := pairing{dir.Path, name, key.String(), !slices.Contains(before, p), back}
	if asJSON {
		return std.json(r)
	}
	if made {
		std.notef("made a private key in %s\n", dir.Path)
	}
	word := "paired with"
	if !r.New {
		word = "was paired before with"
	}
	std.notef("%s %s, %s\nif it is not done yet, paste this line on %[2]s:\n", word, name, key.Short())
	std.printf("%s\n", r.Back.Command) // alone there, as that of init and show
	return nil
}

// ownIdentity loads this host's key, or makes it.
func ownIdentity(ctx context.Context, dir linkkeys.Dir) (id *keys.Identity, made bool, err error) {
	id, err = keys.LoadIdentity(dir.Path)
	if made = errors.Is(err, keys.ErrNoIdentity); made {
		id, err = keys.Init(ctx, dir.Path, false)
	}
	if errors.Is(err, keys.ErrIdentityExists) { // another command was faster
		made = false
		id, err = keys.LoadIdentity(dir.Path)
	}
	return id, made, keysError(err)
}

// peerJSON is one line of `pdlink keys list --json`.
type peerJSON struct {
	Event string `json:"event"`
	Name  string `json:"name"`
	Key   string `json:"key"`
}

// keysSummary is its last line.
type keysSummary struct {
	Event string `json:"event"`
	Dir   string `json:"dir"`
	Key   string `json:"key"`   // this host's; empty: it has none
	Peers int    `json:"peers"` // how many there are
}

func newKeysList(std streams, f *keysFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list the hosts that this one talks to",
		Long: `list prints the hosts that this one talks to and their keys.

` + statusText,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := f.where(c)
			if err != nil {
				return err
			}
			return keysList(std, dir, f.asJSON)
		},
	}
}

func keysList(std streams, dir linkkeys.Dir, asJSON bool) error {
	peers, err := keys.LoadPeers(dir.Path)
	if err != nil {
		return keysError(err)
	}
	sum := keysSummary{Event: "summary", Dir: dir.Path, Peers: len(peers)}
	own := "no key of its own: make one with " + dir.Command("init")
	switch id, err := keys.LoadIdentity(dir.Path); {
	case err == nil:
		sum.Key, own = id.Public().String(), "this host is "+id.Public().String()
	case !errors.Is(err, keys.ErrNoIdentity):
		return keysError(err)
	}
	if asJSON {
		for _, p := range peers {
			if err := std.json(peerJSON{"peer", p.Name, p.Key.String()}); err != nil {
				return err
			}
		}
		return std.json(sum)
	}
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	for _, p := range peers {
		printTo(tw, "%s\t%s\n", p.Name, p.Key.String())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	std.printf("%s in %s; %s\n", count(len(peers), "peer"), dir.Path, own)
	return nil
}

func newKeysRevoke(std streams, f *keysFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "talk no longer to a host",
		Long: `revoke takes a host, by its name or its key, out of those that this one talks to,
under every name that its key has. Programs that run end its connections within
seconds. To be rid of a key that is in the wrong hands, revoke it on every host
that has it.

` + statusText,
		Example:           `  pdlink keys revoke spark1`,
		Args:              wants(1, "NAME"),
		ValidArgsFunction: f.completePeer,
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := f.where(c)
			if err != nil {
				return err
			}
			return keysRevoke(c.Context(), std, dir, args[0], f.asJSON)
		},
	}
}

// revocation is what `pdlink keys revoke --json` prints.
type revocation struct {
	Dir   string    `json:"dir"`
	Peers []revoked `json:"peers"` // under every name; at least one
}

// revoked is one name that a key had.
type revoked struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

func keysRevoke(ctx context.Context, std streams, dir linkkeys.Dir, nameOrKey string, asJSON bool) error {
	peers, err := keys.RemovePeer(ctx, dir.Path, nameOrKey)
	if errors.Is(err, keys.ErrUnknownPeer) {
		return fmt.Errorf("%w: %s names those that are there", err, dir.Command("list"))
	}
	if err != nil {
		return keysError(err)
	}
	r := revocation{Dir: dir.Path}
	for _, p := range peers {
		r.Peers = append(r.Peers, revoked{p.Name, p.Key.String()})
		if !asJSON {
			std.printf("revoked %s, %s: connections with it end within seconds\n", p.Name, p.Key.Short())
		}
	}
	if asJSON {
		return std.json(r)
	}
	return nil
}

// completePeer completes the name of one peer.
func (f *keysFlags) completePeer(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return linkkeys.CompletePeer(f.dir, typed), cobra.ShellCompDirectiveNoFileComp
}
