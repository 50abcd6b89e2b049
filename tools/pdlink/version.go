package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// version is set by the linker (see the Makefile); "" means that the module's
// own facts count.
var version string

// buildFacts is what `pdlink version` prints.
type buildFacts struct {
	cmdline.Build
	Protocol string   `json:"protocol"`
	Sums     []string `json:"sums"`
	Links    []string `json:"links"`
}

func thisBuild() buildFacts {
	return buildFacts{
		Build: cmdline.BuildOf(version), Protocol: fmt.Sprintf("%d.%d", wire.Major, wire.Minor), Sums: transport.Sums(), Links: linkSchemes(),
	}
}

func newVersion(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "print what this build is",
		Long: `version prints what this build is. The two ends of a link need the same protocol.

` + statusText,
		Args: wants(0),
		RunE: func(*cobra.Command, []string) error {
			f := thisBuild()
			if asJSON {
				return std.json(f)
			}
			std.printf("pdlink %s\n  revision  %s\n  go        %s %s\n  protocol  %s\n  links     %s\n  checksums %s\n",
				f.Version, f.RevisionText(), f.Go, f.Platform, f.Protocol, listText(f.Links), listText(f.Sums))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmdline.WithoutSettings(c)
	return c
}
