//go:build unix

package keys

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// owned is a file of a user.
type owned struct {
	uid  uint32
	none bool
}

func (o owned) Name() string       { return "f" }
func (o owned) Size() int64        { return 0 }
func (o owned) Mode() fs.FileMode  { return 0o600 }
func (o owned) ModTime() time.Time { return time.Time{} }
func (o owned) IsDir() bool        { return false }
func (o owned) Sys() any {
	if o.none {
		return nil
	}
	return &syscall.Stat_t{Uid: o.uid}
}

func TestCheckOwner(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, tt := range []struct {
		fi fs.FileInfo
		ok bool
	}{
		{owned{uid: me}, true}, {owned{uid: 0}, true}, {owned{uid: me + 1}, false}, {owned{uid: 1<<32 - 1}, false}, {owned{none: true}, false},
	} {
		err := checkOwner("a/file", tt.fi)
		if (err == nil) != tt.ok || err != nil && (!errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), "a/file")) {
			t.Errorf("%+v: %v", tt.fi, err)
		}
	}
}
