package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// version is set by the linker (see the Makefile); "" means that the module's
// own facts count.
var version string

// unknown is what a build says that was not made of a repository.
const unknown = "unknown"

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
		if f.Version == "" && info.Main.Version != "(devel)" {
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
	if f.Version == "" {
		f.Version = unknown
	}
	return f
}

func newVersion(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "print what this build is",
		Args:  wants(0),
		RunE: func(*cobra.Command, []string) error {
			f := facts()
			if asJSON {
				return std.json(f)
			}
			revision := f.Revision
			if revision == "" {
				revision = unknown
			}
			if f.Modified {
				revision += " (modified)"
			}
			std.printf("pdlink %s\n  revision  %s\n  go        %s %s\n  protocol  %s\n  links     %s\n  checksums %s\n",
				f.Version, revision, f.Go, f.Platform, f.Protocol, listText(f.Links), listText(f.Sums))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
