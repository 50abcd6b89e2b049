package linkkeys

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/transport/codec"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
)

// The values of --encrypt.
const (
	encryptOn  = "on"
	encrypt256 = "256"
	EncryptOff = "off"
)

// encryptValues are the values of --encrypt, the default first.
func encryptValues() []string { return []string{encryptOn, encrypt256, EncryptOff} }

// Flags are what a command line says of keys, and of what else is done to data on its
// way. The zero value leaves all to Choose.
type Flags struct {
	Dir      string // --keys; "": the default directory, where it is of use
	Peer     string // --peer; "": any
	Encrypt  string // --encrypt; "" is "on"
	Compress string // --compress; "" is "auto"
}

// Names are the flags' names without dashes, for a command that has to refuse
// some of them.
func Names() []string { return []string{"keys", "peer", "encrypt", "compress"} }

// Register adds the flags to a command: --peer only where it dials.
func (f *Flags) Register(c *cobra.Command, dials bool) {
	fl := c.Flags()
	fl.StringVar(&f.Dir, "keys", "", "prove who this host is and seal the data, with the keys in `DIR` (default: when the address is not loopback, "+
		"those in $"+Env+", else in pdlink of the user's configuration directory)")
	f.RegisterEncrypt(c)
	fl.StringVar(&f.Compress, "compress", codec.Auto.String(), "`CODEC` for the data on tcp links: auto (where the link is so slow that it pays), off, lz4 or bf16; off counts where one end says so")
	must(c.RegisterFlagCompletionFunc("compress", cobra.FixedCompletions(codec.Modes(), cobra.ShellCompDirectiveNoFileComp)))
	if dials {
		fl.StringVar(&f.Peer, "peer", "", "with keys: only the peer called `NAME` will do (default: any that is paired)")
		must(c.RegisterFlagCompletionFunc("peer", func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return CompletePeer(f.Dir, typed), cobra.ShellCompDirectiveNoFileComp
		}))
	}
	must(c.MarkFlagDirname("keys"))
}

// RegisterEncrypt adds --encrypt alone.
func (f *Flags) RegisterEncrypt(c *cobra.Command) {
	c.Flags().StringVar(&f.Encrypt, "encrypt", encryptOn, "with keys: on, 256 (longer keys) or off, `HOW` data is sealed; off counts only where both ends say so, for a cable")
	must(c.RegisterFlagCompletionFunc("encrypt", cobra.FixedCompletions(encryptValues(), cobra.ShellCompDirectiveNoFileComp)))
}

// Check looks at the values, without a look at any file.
func (f *Flags) Check() error {
	if f.Peer != "" {
		if err := keys.CheckName(f.Peer); err != nil {
			return fmt.Errorf("--peer: %w", err)
		}
	}
	_, err := f.suite()
	if _, e := codec.ParseMode(f.Compress); e != nil {
		err = errors.Join(err, fmt.Errorf("--compress %.20q: want %s", f.Compress, strings.Join(codec.Modes(), ", ")))
	}
	return err
}

// suite is what --encrypt means.
func (f *Flags) suite() (seal.Suite, error) {
	switch f.Encrypt {
	case "", encryptOn:
		return seal.AES128GCM, nil
	case encrypt256:
		return seal.AES256GCM, nil
	case EncryptOff:
		return seal.Clear, nil
	}
	return 0, fmt.Errorf("--encrypt %q: want %s", f.Encrypt, strings.Join(encryptValues(), ", "))
}

// CompletePeer returns the names of the peers that begin with what was typed,
// with their keys' beginnings; none where they cannot be read. dir is a flag's
// value, as for DirOf.
func CompletePeer(dir, typed string) (names []cobra.Completion) {
	d, err := DirOf(dir)
	if err != nil {
		return nil
	}
	peers, err := keys.LoadPeers(d.Path)
	if err != nil {
		return nil
	}
	for _, p := range peers {
		if strings.HasPrefix(p.Name, typed) {
			names = append(names, cobra.CompletionWithDesc(p.Name, p.Key.Short()))
		}
	}
	return names
}

// must stops a program whose own command tree is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
