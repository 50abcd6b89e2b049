package cmdline

import (
	"runtime"
	"runtime/debug"
)

// unknown is what a build says that was not made of a repository.
const unknown = "unknown"

// Build is what a program is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the repository; "" where that is not known
	Modified bool   `json:"modified"` // the tree was not as committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// BuildOf describes this program. version is what the linker was told; "": the
// module's own version counts.
func BuildOf(version string) Build {
	b := Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = unknown
	}
	return b
}

// RevisionText is the revision for people.
func (b Build) RevisionText() string {
	switch {
	case b.Revision == "":
		return unknown
	case b.Modified:
		return b.Revision + " (modified)"
	}
	return b.Revision
}
