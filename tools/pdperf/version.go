package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// version is set by the linker (see the Makefile); "" means that the module's own
// facts count.
var version string

// buildFacts is what `pdperf version` prints.
type buildFacts struct {
	cmdline.Build
	Protocol string   `json:"protocol"`
	Sums     []string `json:"sums"`
	Links    []string `json:"links"`
}

func newVersion(io streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "print what this build is",
		Long: `version prints what this build is. The two ends of a link need the same protocol.

` + statusText,
		Args: cmdline.Wants(0),
		RunE: func(*cobra.Command, []string) error {
			f := buildFacts{cmdline.BuildOf(version), fmt.Sprintf("%d.%d", wire.Major, wire.Minor), transport.Sums(), linkSchemes()}
			if asJSON {
				return io.json(f)
			}
			io.printf("pdperf %s\n  revision  %s\n  go        %s %s\n  protocol  %s\n  links     %v\n  checksums %v\n",
				f.Version, f.RevisionText(), f.Go, f.Platform, f.Protocol, f.Links, f.Sums)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// buildVersion is this build's version, as results have it.
func buildVersion() string { return cmdline.BuildOf(version).Version }
