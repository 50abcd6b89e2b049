//go:build !unix

package tcp

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
