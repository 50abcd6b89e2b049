//go:build cudalib && !cuda

package cuda

import (
	"os"
	"strings"
	"testing"
)

// TestNoDevice: on a machine without a GPU the library says so and the reference
// takes over. With one, it is the GPU that is chosen.
func TestNoDevice(t *testing.T) {
	m := model{g: smallGeometry(4)}
	p, err := Open(m.g, m, 256, Options{Library: os.Getenv("PDLINK_PDPROJ"), MaxTokens: 512})
	must(t, err)
	defer closeIt(t, p)
	c := p.Choice()
	t.Log(c.Why)
	if c.Engine == Reference && !strings.Contains(c.Why, "CUDA driver") && !strings.Contains(c.Why, "GPU") && !strings.Contains(c.Why, "CUDA-capable device") {
		t.Errorf("%q does not say what is missing", c.Why)
	}
}
