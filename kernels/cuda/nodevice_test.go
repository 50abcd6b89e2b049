//go:build cudalib && !cuda

package cuda

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// TestNoDevice: on a machine without a GPU the library says so, Auto takes the
// reference and GPU is refused. With one, it is the GPU that is chosen.
func TestNoDevice(t *testing.T) {
	_, err := os.Stat("/dev/nvidiactl") // the driver's, where it has a GPU
	there := err == nil
	m := model{g: smallGeometry(4)}
	o := Options{Library: os.Getenv("PDLINK_PDPROJ"), MaxTokens: 512}
	p, err := Open(m.g, m, 256, o)
	must(t, err)
	defer closeIt(t, p)
	c := p.Choice()
	t.Log(c.Why)
	if want := map[bool]Engine{true: GPU, false: Reference}[there]; c.Engine != want {
		t.Fatalf("%v was chosen, want %v: %s", c.Engine, want, c.Why)
	}
	if there {
		return
	}
	// The driver is there or not where containers hide the GPU.
	if !strings.HasSuffix(c.Why, "look for a GPU: no CUDA driver on this machine") &&
		!strings.HasSuffix(c.Why, "look for a GPU: count the GPUs: no CUDA-capable device is detected") {
		t.Errorf("%q does not say what is missing", c.Why)
	}
	o.Engine = GPU
	if p, err := Open(m.g, m, 256, o); !errors.Is(err, ErrUnavailable) || p != nil {
		t.Errorf("a GPU that is not there: %v, want %v", err, ErrUnavailable)
	}
	var e cError
	facts := cFacts{size: uint32(unsafe.Sizeof(cFacts{}))}
	code := built(t).query(0, &facts, &e)
	if said := *(*int32)(unsafe.Pointer(&e)); code != codeNoDevice || said != code {
		t.Errorf("query returns %d and says %d, want %d", code, said, codeNoDevice)
	}
}
