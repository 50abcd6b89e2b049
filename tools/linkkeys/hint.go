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

// hint is what a user should know besides about an error of Dial or Listen, or
// about a peer that a listener turned away, that has to do with keys; "" if there
// is nothing.
func (c Choice) hint(err error) string {
	switch {
	case errors.Is(err, keys.ErrRevoked), errors.Is(err, keys.ErrRefused): // there is nothing to run here
		return ""
	case errors.Is(err, keys.ErrUnknownPeer):
		hint := "no data was sent: make sure that it is the right host before you trust it"
		if c.Dir.Named {
			hint += ", and add" + c.Dir.Flag() + " to the command"
		}
		return hint
	case errors.Is(err, transport.ErrInsecure) && !Refused(err) && c.Store == nil:
		return "with --keys DIR the keys in a directory are used"
	case errors.Is(err, transport.ErrInsecure) && c.Dir.Named:
		return "on this host commands need" + c.Dir.Flag()
	}
	return ""
}

// Explain adds to an error of Dial or Listen, or to why a listener turned a peer
// away, what a user should know besides.
func (c Choice) Explain(err error) error {
	if hint := c.hint(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}
