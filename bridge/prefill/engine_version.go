package prefill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrVersion is returned for a version of vLLM that the connector does not run in: it
// leaves the engine as it would be without it. ErrUntested is one of these that it tries
// when it is told to.
var (
	ErrVersion  = errors.New("prefill: vLLM is of another version")
	ErrUntested = fmt.Errorf("%w that was not tested", ErrVersion)
)

// What the connector runs in: minor versions of vLLM 0.x in order, those that it was
// tested with and the newest one that it tries, as ADAPTERS and NEWEST of
// bridge/vllm/pdlink_vllm/engine.py have them.
const newestMinor = 33

func testedMinors() []int { return []int{21, 28, 32} }

// versionForm is how vLLM says its version: the minor one counts.
var versionForm = regexp.MustCompile(`^0\.(\d+)(?:\D|$)`)

// Version returns what the server says is its version, as one short line. Errors: the
// context's; another says that it does not tell.
func (v *VLLM) Version(ctx context.Context) (string, error) {
	b, err := v.send(ctx, http.MethodGet, v.base.JoinPath("version"), nil)
	if err != nil {
		return "", err
	}
	var answer struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return "", fmt.Errorf("its version: %w", err)
	}
	if answer.Version == "" {
		return "", errors.New("its answer to /version has none")
	}
	return said([]byte(answer.Version)), nil
}

// CheckVersion says whether the connector runs in a version of vLLM. Errors: ErrVersion,
// ErrUntested, with those that it was tested with.
func CheckVersion(version string) error {
	minor := -1
	if m := versionForm.FindStringSubmatch(version); m != nil {
		minor, _ = strconv.Atoi(m[1]) // digits; 0 where they are too many
	}
	tested := testedMinors()
	switch {
	case slices.Contains(tested, minor):
		return nil
	case minor < tested[0] || minor > newestMinor:
		return fmt.Errorf("%w: %s, and the connector runs in %s", ErrVersion, version, TestedVersions())
	}
	return fmt.Errorf("%w: %s, and the connector was tested with %s", ErrUntested, version, TestedVersions())
}

// TestedVersions are the versions of vLLM that the connector was tested with, for people,
// the newest last.
func TestedVersions() string {
	tested := testedMinors()
	list := make([]string, 0, len(tested))
	for _, minor := range tested {
		list = append(list, fmt.Sprintf("0.%d", minor))
	}
	return strings.Join(list, ", ")
}
