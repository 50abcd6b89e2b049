package rdma

import (
	"strings"
	"testing"
)

// TestAddresses reads what URLs say, and says it again.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]Addr{
		"h:1":                            {Host: "h:1"},
		"h:1/":                           {Host: "h:1"},
		"[fe80::1%en0]:7411":             {Host: "[fe80::1%en0]:7411"},
		"h:1?":                           {Host: "h:1"},
		"h:1?device=mlx5_0":              {Host: "h:1", Device: "mlx5_0"},
		"h:1/?device=mlx5_0%3A2":         {Host: "h:1", Device: "mlx5_0:2"},
		"h:1?fallback=no":                {Host: "h:1", Only: true},
		"h:1?fallback=yes&device=rxe0:1": {Host: "h:1", Device: "rxe0:1", Falls: true},
		"":                               {},
	} {
		got, err := ParseAddr(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseAddr(got.String()); err != nil || again != got {
			t.Errorf("%q is written %q, which reads %+v, %v", text, got, again, err)
		}
		if err := got.Dials(); (err != nil) != (want.Only || want.Falls) {
			t.Errorf("%q: dials: %v", text, err)
		} else if err != nil && (!strings.Contains(err.Error(), "the end that listens") || !strings.Contains(err.Error(), "device=NAME")) {
			t.Errorf("%q: dials: %v", text, err)
		}
	}
}

// TestRefusedAddresses: each error names what is wrong, and what would be right.
func TestRefusedAddresses(t *testing.T) {
	for query, says := range map[string][]string{
		"gid=3":                        {`parameter "gid" is unknown`, "device=NAME[:PORT]", "fallback=yes or fallback=no"},
		"Device=x":                     {`"Device" is unknown`, "device=NAME"},
		"device":                       {`device is ""`, "want device=NAME"},
		"device=":                      {`device is ""`, "want device=NAME"},
		"device=:1":                    {`device is ":1"`, "device=NAME:PORT"},
		"device=x:0":                   {`device is "x:0"`, "device=NAME:PORT"},
		"device=x:y":                   {`device is "x:y"`, "device=NAME:PORT"},
		"device=a&device=b":            {`"device" is there 2 times`, "want each once"},
		"device=a&device=a":            {`"device" is there 2 times`},
		"fallback=no&fallback=no":      {`"fallback" is there 2 times`},
		"fallback=maybe":               {`fallback is "maybe"`, "want fallback=yes or fallback=no"},
		"fallback=no;device=x":         {"semicolon"},
		"%zz":                          {"invalid URL escape"},
		"device=a\x1b[2J:":             {`\x1b`},
		strings.Repeat("x", 100) + "=": {"is unknown"},
	} {
		a, err := ParseAddr("h:1?" + query)
		if err == nil {
			t.Errorf("%q was read as %+v", query, a)
			continue
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q: %v, want %q in it", query, err, s)
			}
		}
		if strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%q: the error is not printable: %q", query, err)
		}
	}
}
