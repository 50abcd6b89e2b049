package linkkeys

import (
	"errors"
	"fmt"

	"pdlink/transport"
	"pdlink/transport/keys"
)

// Refused reports an error of Dial that has nothing to do with the command line:
// one of the two ends, or both, do not accept the other's key, or it has none. The
// error says what to do; trying again is of no use before.
func Refused(err error) bool {
	return errors.Is(err, keys.ErrUnknownPeer) || errors.Is(err, keys.ErrRefused) || errors.Is(err, keys.ErrNoKeys)
}

// Misused reports an error of Dial or Listen for which the command line is to blame, so
// that trying again is of no use: an address that strangers can reach, and no keys. All
// else is what a job came to, a link that this host cannot have too
// (transport.ErrUnavailable): on another host the same command line works.
func Misused(err error) bool { return errors.Is(err, transport.ErrInsecure) && !Refused(err) }

// dirHint says how the keys of a directory are asked for.
const dirHint = "; with --keys DIR, or $" + Env + ", the keys in a directory are used"

// hint is what a user should do, or know besides, about an error of Dial or Listen, or
// about a peer that a listener turned away, that has to do with keys; "" if there is
// nothing.
func (c Choice) hint(err error) string {
	switch {
	case errors.Is(err, keys.ErrRevoked): // there is nothing to run here
		return ""
	case errors.Is(err, keys.ErrRefused) && c.Store != nil:
		return ": run `" + PairCommand(c.ownName(), c.Store.Public()) + "` there"
	case c.Own(err):
		return ": it is this host's own, and two hosts need two keys: run `pdlink keys init --replace` on the one to which it was copied, and pair that one anew; if nobody copied it, on this one: its private key is in the wrong hands"
	case errors.Is(err, keys.ErrUnknownPeer):
		hint := ": if you know whose it is, run here the `pdlink keys pair` line that `pdlink keys show` prints there; no data was sent: make sure that it is the right host before you trust it"
		if c.Dir.Named {
			hint += ", and add" + c.Dir.Flag() + " to the command"
		}
		return hint
	case errors.Is(err, keys.ErrNoKeys):
		hint := ": run `pdlink keys init` on its host, `pdlink keys pair` on both, and start it with keys"
		if c.Dir.Named {
			hint += "; on this host commands need" + c.Dir.Flag()
		}
		return hint
	case errors.Is(err, keys.ErrKeysWanted):
		return ": run `pdlink keys init` on this host, `pdlink keys pair` on both, and use the keys here" + dirHint
	case errors.Is(err, keys.ErrExposed):
		return ": run `pdlink keys init` and `pdlink keys pair` on both hosts, or use 127.0.0.1 or [::1], for example through an ssh tunnel" + dirHint
	case Misused(err) && c.Store == nil:
		return dirHint
	}
	return ""
}

// ownName is what the other host may call this one.
func (c Choice) ownName() string {
	if name, err := OwnName(c.Dir.Path); err == nil {
		return name
	}
	return HostName()
}

// Mend adds to an error of package keys that is about what a user gave what to run.
func Mend(err error) error {
	var taken *keys.TakenError
	switch {
	case errors.As(err, &taken):
		return fmt.Errorf("%w: run `pdlink keys revoke %s` first", err, taken.Taken.Name)
	case errors.Is(err, keys.ErrBadKey):
		return fmt.Errorf("%w: give it as `pdlink keys show` prints it on its host", err)
	}
	return err
}

// Explain adds to an error of Dial or Listen, or to why a listener turned a peer
// away, what to do about it, and what a user should know besides.
func (c Choice) Explain(err error) error {
	if hint := c.hint(err); hint != "" {
		return fmt.Errorf("%w%s", err, hint)
	}
	return err
}
