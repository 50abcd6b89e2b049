//go:build !linux || !(amd64 || arm64) || nocuda

package cuda

import "fmt"

// load fails: this build has no loader.
func load(string) (*library, error) {
	return nil, fmt.Errorf("%w: this program was built without it (it needs Linux on amd64 or arm64, and no tag nocuda)", ErrUnavailable)
}
