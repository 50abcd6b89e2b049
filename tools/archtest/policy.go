package archtest

// Policy is what a module allows. Package names in it are directories below the root.
type Policy struct {
	// Top is the fixed content of the root directory; names beginning with a dot are always fine.
	Top []string
	// Imports has one entry for each package.
	Imports map[string]Imports
	// TestImports may be imported by every test file, with the reason.
	TestImports map[string]string
	// Arrows hold whatever Imports says, for tests too.
	Arrows []Arrow
	// Cgo has the packages that may import "C", with the reason.
	Cgo map[string]string
	// NotInBinaries lists import paths that no program may contain, with the reason.
	NotInBinaries map[string]string
	// Skips has the tests that may call t.Skip, as "dir.TestName", with the reason.
	Skips map[string]string
	// Upper limits; a file of any language counts, functions and interfaces of Go.
	FileLines, FunctionLines, InterfaceMethods int
}

// Imports is what one package may import beside the standard library.
type Imports struct {
	Internal []string          // packages of this module
	Modules  map[string]string // packages of other modules, with the reason
	Tests    []string          // further packages of this module, for the package's own tests
	NoStd    []string          // packages of the standard library that it may not import
}

// Arrow forbids imports between subtrees: no package at or below From, except those at or below Except, imports a package at
// or below To.
type Arrow struct {
	From   string // "" is every package outside To
	Except []string
	To     string
	Why    string
}

// Pdlink returns the architecture of this module.
func Pdlink() Policy {
	return Policy{
		Top: []string{
			"transport", "rdma", "tcp", "bridge", "kernels", "tools", "go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
		},
		Imports: pdlinkImports(),
		TestImports: map[string]string{
			"go.uber.org/goleak": "a test that leaves a goroutine behind fails",
			xxh3:                 "frames and pieces made by hand, with a right or a wrong sum",
		},
		Arrows: []Arrow{
			{"", []string{"tools/pdlink", "tools/pdperf", "rdma/linktest"}, "tcp", "links are chosen in the programs, by URL scheme"},
			{"", []string{"tools/pdlink", "tools/pdperf"}, "rdma", "links are chosen in the programs, by URL scheme"},
			{"tcp", nil, "rdma", "the links do not know each other"},
			{"rdma", []string{"rdma/linktest"}, "tcp", "the links do not know each other, but for tests of whole ones"},
			{"bridge", nil, "tcp", "the bridge cannot tell which link it got"},
			{"bridge", nil, "rdma", "the bridge cannot tell which link it got"},
			{"kernels", nil, "transport", "kernels are arithmetic"},
			{"kernels", nil, "bridge", "kernels are arithmetic"},
			{"transport", nil, "kernels", "the transport's payload is opaque"},
			{"transport", nil, "bridge", "the transport's payload is opaque"},
			{"tcp", nil, "bridge", "a link moves bytes and knows no blocks"},
			{"rdma", nil, "bridge", "a link moves bytes and knows no blocks"},
		},
		Cgo: map[string]string{},
		NotInBinaries: map[string]string{
			"testing":                        "registers flags and drags the test framework in",
			"go.uber.org/goleak":             "a check for tests",
			"pdlink/transport/transporttest": "the conformance suite",
		},
		Skips:            map[string]string{},
		FileLines:        500,
		FunctionLines:    60,
		InterfaceMethods: 6,
	}
}
