package main

import (
	"strings"

	"github.com/spf13/cobra"

	"pdlink/kernels"
)

// completeFixed has the values of flags completed that have few: schemes of links, which
// an address follows, and roundings.
func completeFixed(decodes, prefills, replays *cobra.Command) {
	for c, flag := range map[*cobra.Command]string{decodes: "listen", prefills: "to", replays: "to"} {
		must(c.RegisterFlagCompletionFunc(flag, completeScheme))
	}
	names := []string{kernels.MLXMetal.String(), kernels.MLXCPU.String(), kernels.Ideal.String()}
	must(prefills.RegisterFlagCompletionFunc("numerics", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)))
}

// completeScheme completes the scheme of a link that leads to another process.
func completeScheme(_ *cobra.Command, _ []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	for _, scheme := range linkSchemes() {
		if scheme != schemeMem && strings.HasPrefix(scheme+"://", typed) {
			names = append(names, scheme+"://")
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
