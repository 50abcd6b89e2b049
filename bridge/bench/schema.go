package bench

import _ "embed" // of the schema

//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of a Report, with what each field means.
func Schema() string { return schema }
