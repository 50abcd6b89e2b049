package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// version is set by the linker; "" means that the module's own facts count.
var version string

// buildFacts is what `pdlink version` prints.
type buildFacts struct {
	Version  string   `json:"version"`
	Revision string   `json:"revision"`
	Modified bool     `json:"modified"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Protocol string   `json:"protocol"`
	Sums     []string `json:"sums"`
	Links    []string `json:"links"`
}

func facts() buildFacts {
	f := buildFacts{
		Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocol: fmt.Sprintf("%d.%d", wire.Major, wire.Minor), Sums: transport.Sums(), Links: linkSchemes(),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if f.Version == "" {
			f.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				f.Revision = s.Value
			case "vcs.modified":
				f.Modified = s.Value == "true"
			}
		}
	}
	return f
}

func newVersion(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "print what this build is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f := facts()
			if asJSON {
				return std.json(f)
			}
			modified := ""
			if f.Modified {
				modified = " (modified)"
			}
			std.printf("pdlink %s\n  revision  %s%s\n  go        %s %s\n  protocol  %s\n  links     %v\n  checksums %v\n",
				f.Version, f.Revision, modified, f.Go, f.Platform, f.Protocol, f.Links, f.Sums)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
