package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"
)

// TestBlindness: what a store makes of a file that it cannot read, look by look, a
// second apart.
func TestBlindness(t *testing.T) {
	line := "a " + PublicKey{1}.String() + "\n"
	broken := errors.New("input/output error")
	denied := fileError("d/peers", fmt.Errorf("open: %w", fs.ErrPermission))
	if !errors.Is(denied, ErrPermissions) {
		t.Fatalf("%v", denied)
	}
	var content string
	var failure error
	w := &watch{dir: "d", read: func(string) ([]byte, error) { return []byte(content), failure }}
	defer w.close()
	content = line
	w.used = w.look()
	w.last = w.used
	now, peers := time.Unix(1_000_000, 0), 1
	var problems []error
	step := func(what string, seconds int, text string, err error, want, told int) {
		t.Helper()
		content, failure, problems = text, err, nil
		for range seconds {
			now = now.Add(time.Second)
			v := w.next(now)
			if v.changed {
				peers = len(v.peers)
			}
			if v.problem != nil {
				problems = append(problems, v.problem)
			}
		}
		if peers != want || len(problems) != told {
			t.Errorf("%s: %d peers, want %d; problems %v, want %d", what, peers, want, problems, told)
		}
	}
	step("as it was", 5, line, nil, 1, 0)
	step("one look denied", 1, "", denied, 1, 0)
	step("denied", 1, "", denied, 0, 1)
	step("still denied", 100, "", denied, 0, 0)
	step("readable", 2, line, nil, 1, 0)
	step("broken", 10, "", broken, 1, 1)
	step("broken for longer", 1, "", broken, 0, 1)
	step("broken for minutes", 120, "", broken, 0, 2)
	step("readable again", 2, line, nil, 1, 0)
	// Every other look fails: a change counts all the same, and little is said.
	now = now.Add(time.Hour)
	said := 0
	for i := range 20 {
		now = now.Add(time.Second)
		content, failure = "# nobody\n", nil
		if i%2 == 0 {
			content, failure = "", broken
		}
		v := w.next(now)
		if v.changed {
			peers = len(v.peers)
		}
		if v.problem != nil {
			said++
		}
		if gone := i >= 3; gone != (peers == 0) { // two readable looks
			t.Fatalf("look %d: %d peers", i, peers)
		}
	}
	if said != 1 {
		t.Errorf("%d words about it", said)
	}
}

func TestShellPath(t *testing.T) {
	for path, want := range map[string]string{
		"/home/a/.config/pdlink": "/home/a/.config/pdlink", "/Library/Application Support/x": "'/Library/Application Support/x'",
		"": "''", "a'b": `'a'\''b'`, "-rf": "./-rf", "-r f": "'./-r f'", "$(x)`y`;|&": "'$(x)`y`;|&'", "~x": "'~x'", "ä": "'ä'", "a\nb": "'a\nb'",
	} {
		if got := ShellPath(path); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
}
