package services_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pdlink/tools/services"
)

// host is one whose path needs escapes.
func host() services.Host {
	return services.Host{Program: "/opt/pd link/bin/pdlink&co", User: "ada", Home: "/home/ada <l>"}
}

// TestEveryUnitIsWhole: no place is left to be filled, and what was filled is in it.
func TestEveryUnitIsWhole(t *testing.T) {
	all := services.Units()
	if len(all) != 3 {
		t.Fatalf("%d units", len(all))
	}
	for _, u := range all {
		text, err := u.Text(host())
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range []string{"@PROGRAM@", "@USER@", "@HOME@", "@FLAGS@", "@CONFIG@"} {
			if strings.Contains(text, place) {
				t.Errorf("%s: %s is left", u.Place, place)
			}
		}
		again, err := services.Find(u.Service, u.System)
		if err != nil || again.Place != u.Place {
			t.Errorf("%+v, %v", again, err)
		}
		if len(u.Start) == 0 || strings.Contains(u.LogCommand(host()), "@") {
			t.Errorf("%s: %q, %q", u.Place, u.Start, u.LogCommand(host()))
		}
	}
	if _, err := services.Find("prefill", services.Launchd); !errors.Is(err, services.ErrNone) || !strings.Contains(err.Error(), "decode of launchd") {
		t.Errorf("%v", err)
	}
}

// TestWhatCannotStandInAFileIsRefused: it would mean something else there.
func TestWhatCannotStandInAFileIsRefused(t *testing.T) {
	good := host()
	for _, h := range []services.Host{
		{Program: "pdlink", User: good.User, Home: good.Home},
		{Program: good.Program, User: good.User, Home: ""},
		{Program: good.Program, User: "", Home: good.Home},
		{Program: good.Program, User: "a b", Home: good.Home},
		{Program: good.Program, User: "-a", Home: good.Home},
		{Program: good.Program, User: "a\nExecStart=/bin/sh", Home: good.Home},
		{Program: "/a\"b", User: good.User, Home: good.Home},
		{Program: "/a%h", User: good.User, Home: good.Home},
		{Program: "/a\nUser=root", User: good.User, Home: good.Home},
		{Program: "/a$b", User: good.User, Home: good.Home},
		{Program: "/a\\b", User: good.User, Home: good.Home},
		{Program: good.Program, User: good.User, Home: good.Home, Config: "config.toml"},
		{Program: good.Program, User: good.User, Home: good.Home, Config: "/a\nUser=root"},
	} {
		for _, u := range services.Units() {
			if text, err := u.Text(h); err == nil {
				t.Errorf("%+v in %s", h, text)
			}
		}
	}
}

// directives are what systemd knows of what the units say, by section: systemd.unit(5),
// systemd.service(5), systemd.exec(5), systemd.kill(5), systemd.resource-control(5).
func directives() map[string][]string {
	return map[string][]string{
		"Unit": {"Description", "Wants", "After"},
		"Service": {
			"User", "ExecStart", "EnvironmentFile", "Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStopSec",
			"RuntimeDirectory", "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "LimitMEMLOCK", "LimitNOFILE",
			"UMask", "CapabilityBoundingSet", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectClock", "ProtectControlGroups",
			"ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "LockPersonality",
			"MemoryDenyWriteExecute", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
			"SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
		},
		"Install": {"WantedBy"},
	}
}

// TestSystemdUnits: every line is one that systemd knows, once, and the unit does what
// a receiver and a sender need.
func TestSystemdUnits(t *testing.T) {
	for _, service := range []string{"decode", "prefill"} {
		u, err := services.Find(service, services.Systemd)
		if err != nil {
			t.Fatal(err)
		}
		text, err := u.Text(host())
		if err != nil {
			t.Fatal(err)
		}
		got, section := map[string]string{}, ""
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			name, value, assigns := strings.Cut(line, "=")
			switch {
			case line == "" || line[0] == '#':
			case line[0] == '[':
				section = strings.Trim(line, "[]")
			case !assigns || !slices.Contains(directives()[section], name):
				t.Errorf("%s: line %q in [%s]", service, line, section)
			default:
				if _, twice := got[name]; twice {
					t.Errorf("%s: %s twice", service, name)
				}
				got[name] = value
			}
			if line != strings.TrimSpace(line) {
				t.Errorf("%s: spaces around %q", service, line)
			}
		}
		for name, want := range map[string]string{
			"User": "ada", "ExecStart": fmt.Sprintf("%q %s", host().Program, service), "After": "network-online.target", "Wants": "network-online.target",
			"LimitMEMLOCK": "infinity", "NoNewPrivileges": "yes", "Restart": "always", "RestartPreventExitStatus": "2", "WantedBy": "multi-user.target",
		} {
			if got[name] != want {
				t.Errorf("%s: %s=%s, want %s", service, name, got[name], want)
			}
		}
	}
}

// TestConfigFilesThatAreNamed: the service reads that one, and says so.
func TestConfigFilesThatAreNamed(t *testing.T) {
	h := host()
	h.Config = "/etc/pd link--/c&.toml"
	for _, u := range services.Units() {
		text, err := u.Text(h)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("ExecStart=%q %s --config %q\n", h.Program, u.Service, h.Config), "is in " + h.Config + ", table [" + u.Service + "]", "EnvironmentFile=-" + u.Env + "\n"}
		if u.System == services.Launchd {
			want = []string{"<string>decode</string>\n\t\t<string>--config</string>\n\t\t<string>/etc/pd link--/c&amp;.toml</string>\n"}
			var into any
			if err := xml.Unmarshal([]byte(text), &into); err != nil {
				t.Errorf("%v in %s", err, text)
			}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in %s", w, text)
			}
		}
	}
	for path, want := range map[string]bool{
		"/usr/local/bin/pdlink": false, "/home/a/go/bin/pdlink": false, "/tmp/x/pdlink": true, "/home/a/pdlink/.build/pdlink": true,
		"/home/a/.cache/go-build/ab/pdlink": true, "/var/tmp/go-build12/b001/exe/pdlink": true, "/tmpx/pdlink": false, "/opt/build/pdlink": false,
	} {
		if got := services.Shortlived(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// plist reads a property list: dictionaries, arrays, strings, integers and booleans.
func plist(d *xml.Decoder, start xml.StartElement) (any, error) {
	switch start.Name.Local {
	case "true", "false":
		return start.Name.Local == "true", d.Skip()
	case "string", "integer", "key":
		var s string
		err := d.DecodeElement(&s, &start)
		return s, err
	}
	dict, list, key := map[string]any{}, []any{}, ""
	for {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		switch x := token.(type) {
		case xml.CharData:
			if strings.TrimSpace(string(x)) != "" {
				return nil, fmt.Errorf("text %q in a %s", x, start.Name.Local)
			}
		case xml.EndElement:
			if start.Name.Local == "dict" {
				return dict, nil
			}
			return list, nil
		case xml.StartElement:
			v, err := plist(d, x)
			switch {
			case err != nil:
				return nil, err
			case start.Name.Local == "array":
				list = append(list, v)
			case x.Name.Local == "key" && key == "":
				key, _ = v.(string)
			case x.Name.Local != "key" && key != "" && dict[key] == nil:
				dict[key], key = v, ""
			default:
				return nil, fmt.Errorf("a %s where it does not belong, after key %q", x.Name.Local, key)
			}
		}
	}
}

// TestLaunchdDaemons: a property list that says what a daemon is.
func TestLaunchdDaemons(t *testing.T) {
	u, err := services.Find("decode", services.Launchd)
	if err != nil {
		t.Fatal(err)
	}
	text, err := u.Text(host())
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(text))
	var top any
	for top == nil {
		token, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		if x, ok := token.(xml.StartElement); ok && x.Name.Local == "dict" {
			if top, err = plist(d, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	p, ok := top.(map[string]any)
	if !ok {
		t.Fatalf("%T", top)
	}
	h := host()
	for key, want := range map[string]any{
		"Label": "pdlink.decode", "ProgramArguments": []any{h.Program, "decode"}, "UserName": h.User, "EnvironmentVariables": map[string]any{"HOME": h.Home},
		"WorkingDirectory": h.Home, "RunAtLoad": true, "KeepAlive": true, "ThrottleInterval": "5", "ExitTimeOut": "20", "ProcessType": "Interactive",
		"SoftResourceLimits": map[string]any{"NumberOfFiles": "4096"}, "StandardOutPath": h.Home + "/Library/Logs/pdlink-decode.log",
		"StandardErrorPath": h.Home + "/Library/Logs/pdlink-decode.log",
	} {
		if fmt.Sprint(p[key]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, p[key], want)
		}
		delete(p, key)
	}
	if len(p) > 0 {
		t.Errorf("further keys: %v", p)
	}
	if !strings.HasPrefix(u.Place, "/Library/LaunchDaemons/") {
		t.Errorf("an agent: %s", u.Place)
	}
}
