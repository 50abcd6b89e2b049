package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// csvHeader is the names of the columns: the paths of the fields of JSON. Of a list of
// objects, such as sockets, the first one has columns.
func csvHeader() (names []string) {
	flatten(reflect.TypeFor[result](), reflect.Value{}, "", func(name string, _ reflect.Value) { names = append(names, name) })
	return names
}

// csvRow is a result in these columns; what is null is empty.
func csvRow(r *result) (cells []string) {
	flatten(reflect.TypeFor[result](), reflect.ValueOf(r).Elem(), "", func(_ string, v reflect.Value) { cells = append(cells, cell(v)) })
	return cells
}

// flatten calls leaf for each field that is no object, in the order of the types, so that
// it is the same for all values. v is the zero Value where there is none.
func flatten(t reflect.Type, v reflect.Value, path string, leaf func(string, reflect.Value)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && elem(t).Kind() == reflect.Struct {
		switch {
		case !v.IsValid() || t.Kind() == reflect.Pointer && v.IsNil() || t.Kind() == reflect.Slice && v.Len() == 0:
			v = reflect.Value{}
		case t.Kind() == reflect.Pointer:
			v = v.Elem()
		default:
			v = v.Index(0)
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		leaf(path, v)
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		var inner reflect.Value
		if v.IsValid() {
			inner = v.Field(i)
		}
		if path != "" {
			name = path + "." + name
		}
		flatten(f.Type, inner, name, leaf)
	}
}

func elem(t reflect.Type) reflect.Type {
	t = t.Elem()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

func cell(v reflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	switch v.Kind() {
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.Slice:
		words := make([]string, v.Len())
		for i := range words {
			words[i] = fmt.Sprint(v.Index(i))
		}
		return strings.Join(words, "; ")
	}
	return fmt.Sprint(v)
}
