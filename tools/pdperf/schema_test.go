package main

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// validate checks a document against result.schema.json: the part of JSON
// Schema that it uses.
func validate(t *testing.T, doc []byte) []string {
	t.Helper()
	v := validator{root: schemaDoc(t)}
	var x any
	if err := json.Unmarshal(doc, &x); err != nil {
		t.Fatalf("%v in %q", err, doc)
	}
	v.check("", v.root, x)
	return v.bad
}

func schemaDoc(t *testing.T) map[string]any {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal([]byte(resultSchema), &root); err != nil {
		t.Fatal(err)
	}
	return root
}

type validator struct {
	root map[string]any
	bad  []string
}

func (v *validator) failf(path, format string, args ...any) {
	v.bad = append(v.bad, path+": "+fmt.Sprintf(format, args...))
}

// known are the keywords that check understands; another one is a fault of the
// schema or of this test.
var known = []string{
	"$schema", "title", "description", "type", "additionalProperties", "required", "properties", "$defs", "$ref", "anyOf", "items", "enum", "const",
}

func (v *validator) check(path string, s map[string]any, x any) {
	for k := range s {
		if !slices.Contains(known, k) {
			v.failf(path, "keyword %q", k)
		}
	}
	if ref, ok := s["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/$defs/")
		v.check(path, v.root["$defs"].(map[string]any)[name].(map[string]any), x)
		return
	}
	if either, ok := s["anyOf"].([]any); ok {
		for _, alternative := range either {
			w := validator{root: v.root}
			if w.check(path, alternative.(map[string]any), x); len(w.bad) == 0 {
				return
			}
		}
		v.failf(path, "none of the alternatives: %v", x)
		return
	}
	if c, ok := s["const"]; ok && c != x {
		v.failf(path, "%v, want %v", x, c)
	}
	if e, ok := s["enum"].([]any); ok && !slices.Contains(e, x) {
		v.failf(path, "%v, want one of %v", x, e)
	}
	v.kind(path, s, x)
}

func (v *validator) kind(path string, s map[string]any, x any) {
	ok := false
	switch s["type"] {
	case "null":
		ok = x == nil
	case "string":
		_, ok = x.(string)
	case "boolean":
		_, ok = x.(bool)
	case "number":
		_, ok = x.(float64)
	case "integer":
		f, is := x.(float64)
		ok = is && f == math.Trunc(f)
	case "array":
		list, is := x.([]any)
		ok = is
		for i, e := range list {
			v.check(fmt.Sprintf("%s[%d]", path, i), s["items"].(map[string]any), e)
		}
	case "object":
		m, is := x.(map[string]any)
		ok = is
		v.object(path, s, m)
	}
	if !ok {
		v.failf(path, "%T, want %v", x, s["type"])
	}
}

func (v *validator) object(path string, s, m map[string]any) {
	if each, ok := s["additionalProperties"].(map[string]any); ok && s["properties"] == nil {
		for name, x := range m {
			v.check(path+"."+name, each, x)
		}
		return
	}
	props := s["properties"].(map[string]any)
	for _, name := range s["required"].([]any) {
		if _, ok := m[name.(string)]; !ok {
			v.failf(path, "%v is missing", name)
		}
	}
	for name, x := range m {
		p, ok := props[name].(map[string]any)
		if !ok {
			v.failf(path, "%q is not in the schema", name)
			continue
		}
		v.check(path+"."+name, p, x)
	}
}

func TestSchemaRefuses(t *testing.T) {
	good := result{
		Schema: schemaName, Program: "pdperf", Direction: "push", Processes: 2, Limited: &limited{}, Disturbed: []string{"by a cat"},
		Sender: endResult{CPU: &cpuUse{}, Sockets: []socketFacts{{}}, NIC: &nicFacts{Offloads: []string{"tso"}}, Load: &loadFacts{}},
	}
	change := func(f func(map[string]any)) []byte {
		text, err := json.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		f(m)
		if text, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		return text
	}
	if bad := validate(t, change(func(map[string]any) {})); len(bad) != 0 {
		t.Fatalf("a good document: %v", bad)
	}
	for name, f := range map[string]func(map[string]any){
		"missing":     func(m map[string]any) { delete(m, "ok") },
		"unknown":     func(m map[string]any) { m["speed"] = 1 },
		"type":        func(m map[string]any) { m["blocks"] = "1" },
		"fraction":    func(m map[string]any) { m["blocks"] = 1.5 },
		"constant":    func(m map[string]any) { m["schema"] = "pdperf/2" },
		"enumeration": func(m map[string]any) { m["program"] = "iperf3" },
		"reference":   func(m map[string]any) { m["block_ms"] = map[string]any{} },
		"alternative": func(m map[string]any) { m["both_cpu"] = map[string]any{"user_seconds": 1} },
		"no count": func(m map[string]any) {
			m["sender"].(map[string]any)["ports"] = []any{map[string]any{"port": "a:1", "counts": []any{map[string]any{"name": "x"}}}}
		},
		"counter": func(m map[string]any) {
			m["sender"].(map[string]any)["sockets"].([]any)[0].(map[string]any)["tcp_info"].(map[string]any)["sent_bytes"] = "many"
		},
		"direction": func(m map[string]any) { m["direction"] = "sideways" },
		"cause":     func(m map[string]any) { m["limited_by"] = map[string]any{"cause": "wire"} },
		"element":   func(m map[string]any) { m["sender"].(map[string]any)["sockets"] = []any{map[string]any{}} },
	} {
		if bad := validate(t, change(f)); len(bad) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestSchemaDocumentsEveryField compares the schema with the types, and demands
// a description of each field.
func TestSchemaDocumentsEveryField(t *testing.T) {
	root := schemaDoc(t)
	defs := root["$defs"].(map[string]any)
	for _, c := range []struct {
		schema any
		v      any
	}{
		{root, result{}}, {defs["end"], endResult{}}, {defs["cpu"], cpuUse{}}, {defs["socket"], socketFacts{}}, {defs["times"], blockTimes{}},
		{defs["port"], portFacts{}}, {defs["count"], portCount{}}, {defs["interface"], nicFacts{}}, {defs["host"], hostFacts{}},
		{defs["load"], loadFacts{}}, {defs["limited"], limited{}},
		{defs["watched"], watched{}}, {defs["quantile"], quantile{}}, {defs["event"], event{}}, {defs["backlog"], backlogFacts{}},
	} {
		s := c.schema.(map[string]any)
		props := s["properties"].(map[string]any)
		var want, have, required []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.v)) {
			if f.IsExported() {
				want = append(want, f.Tag.Get("json"))
			}
		}
		for name, p := range props {
			have = append(have, name)
			if text, _ := p.(map[string]any)["description"].(string); len(text) < 10 || !strings.HasSuffix(text, ".") {
				t.Errorf("%T: %s: description %q", c.v, name, text)
			}
		}
		for _, name := range s["required"].([]any) {
			required = append(required, name.(string))
		}
		slices.Sort(want)
		slices.Sort(have)
		slices.Sort(required)
		if !slices.Equal(want, have) || !slices.Equal(want, required) {
			t.Errorf("%T has %v, the schema %v and demands %v", c.v, want, have, required)
		}
		if more, ok := s["additionalProperties"].(bool); !ok || more {
			t.Errorf("%T: other properties are allowed", c.v)
		}
	}
}

func TestSchemaCommand(t *testing.T) {
	status, out, errOut := cli(t, "schema")
	if status != exitOK || out != resultSchema || errOut != "" || !json.Valid([]byte(out)) {
		t.Errorf("status %d, %q %q", status, out, errOut)
	}
}
