package main

import (
	_ "embed"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

//go:embed result.schema.json
var resultSchema string

func newSchema(io streams) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "print the JSON schema of the results of run, local and floor",
		Long: `schema prints the JSON schema of the results of run, local and floor.

` + statusText,
		Args: cmdline.Wants(0),
		RunE: func(*cobra.Command, []string) error {
			io.printf("%s", resultSchema)
			return nil
		},
	}
}
