//go:build !linux || !(amd64 || arm64) || nocuda || nordma

package cuda

import "fmt"

// load fails: this build has no loader. The tag nordma leaves out every loader of
// libraries, this one too, so that a program without cgo is linked statically; nocuda
// leaves out this one alone.
func load(string) (*library, error) {
	return nil, fmt.Errorf("%w: this program was built without it (it needs Linux on amd64 or arm64, and no tag nocuda or nordma)", ErrUnavailable)
}
