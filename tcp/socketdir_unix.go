//go:build unix

package tcp

import (
	"fmt"
	"os"
	"syscall"

	"pdlink/transport"
)

// checkSocketDir refuses a directory in which another user could put a socket in
// ours' place.
func checkSocketDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if m := fi.Mode().Perm(); m&0o022 != 0 {
		return fmt.Errorf("%w: others can write %s (mode %04o): use a directory of your own, or run `chmod go-w %s`",
			transport.ErrInsecure, dir, m, dir)
	}
	me := os.Geteuid()
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != me && st.Uid != 0 {
		return fmt.Errorf("%w: %s belongs to user %d and this process runs as user %d: use a directory of your own",
			transport.ErrInsecure, dir, st.Uid, me)
	}
	return nil
}
