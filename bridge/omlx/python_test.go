package omlx

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// update writes what the Python programs say now to the records.
var update = flag.Bool("update", false, "rewrite testdata/py/*.json; needs python3")

// havePython reports whether the Python programs can run here. What they said
// once is recorded, so a machine without python3 compares with the record; CI
// must run them.
func havePython(t *testing.T) bool {
	t.Helper()
	if _, err := exec.LookPath("python3"); err == nil {
		return true
	}
	if os.Getenv("CI") != "" || *update {
		t.Fatal("python3 is needed here, so that the records are held to the programs that made them")
	}
	return false
}

// python runs a script.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	cmd := exec.Command("python3", append([]string{"-c", script}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return string(out)
}

// record is what a Python program said, by name.
type record struct{ want, got map[string]string }

// openRecord reads a record; with -update it is rewritten when the test ends
// without a failure, that is when Python agrees.
func openRecord(t *testing.T, path string) *record {
	t.Helper()
	r := &record{want: map[string]string{}, got: map[string]string{}}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r.want)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		switch {
		case *update && !t.Failed():
			text, err := json.MarshalIndent(r.got, "", " ")
			if err == nil {
				err = os.WriteFile(path, append(text, '\n'), 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		case !*update && !maps.Equal(r.got, r.want) && !t.Failed():
			t.Errorf("%s records %d results, the test has %d: run it with -update", path, len(r.want), len(r.got))
		}
	})
	return r
}

// check holds a result to the record.
func (r *record) check(t *testing.T, name, got string) {
	t.Helper()
	r.got[name] = got
	if want := r.want[name]; !*update && got != want {
		t.Errorf("%s is %s, recorded is %s", name, got, want)
	}
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
