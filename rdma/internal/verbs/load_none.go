//go:build nordma || !(linux || darwin) || !(amd64 || arm64)

package verbs

import (
	"fmt"

	"pdlink/transport"
)

// Load fails with transport.ErrUnavailable: this build has no loader.
func Load(Options) (Provider, error) {
	return nil, fmt.Errorf("%w: this program was built without RDMA (it needs Linux or macOS on amd64 or arm64, and no tag nordma)",
		transport.ErrUnavailable)
}
