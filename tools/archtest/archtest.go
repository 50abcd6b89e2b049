// Package archtest holds the architecture of this module as a test: which package may import which, where cgo may be, what
// must not end up in a binary, how large things may grow, and that every file for one system has a twin for the others.
//
// The rules work on a Tree read from any fs.FS, so that each of them is tested with a small tree that breaks it. What this
// module allows is one value, Pdlink; to add a package or a dependency, add a line to table.go, with the reason.
package archtest

import (
	"cmp"
	"fmt"
	"slices"
)

// Violation is one place where a tree breaks a rule.
type Violation struct {
	Rule  string // short name of the rule: "imports", "twins", ...
	Where string // file, file:line or package, relative to the module's root
	What  string // what is wrong and how it is put right
}

// String returns the violation on one line.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Rule, v.Where, v.What) }

// Check applies every rule that needs sources only and returns what it found, ordered by place. The tree and the policy are
// read only; concurrent calls are fine.
func Check(t *Tree, p Policy) []Violation {
	rules := []func(*Tree, Policy) []Violation{
		checkTopLevel, checkPaths, checkImports, checkArrows, checkStaleEntries, checkCgo, checkPackageComments,
		checkPackageNames, checkFileLength, checkFunctionLength, checkInterfaces, checkInit, checkSystemBranches, checkSkips,
		checkTwins,
	}
	all := make([]Violation, 0, len(rules))
	for _, rule := range rules {
		all = append(all, rule(t, p)...)
	}
	slices.SortFunc(all, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.What, b.What))
	})
	return all
}
