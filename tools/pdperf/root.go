package main

import (
	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

// newRoot builds the command tree.
func newRoot(io streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "pdperf",
		Short: "measure what a link between two hosts costs",
		Long: `pdperf moves blocks over a link and says what that cost: goodput, block times,
CPU seconds per gigabyte at both ends, what the kernel granted.

  pdperf local                    both ends on this host, two processes
  pdperf local --links tcp,mem    links, sizes, models, directions side by side
  pdperf serve                    the receiving end
  pdperf run --to URL             the sending end; prints the result
  pdperf floor                    a bare sender and receiver, to compare with
  pdperf compare A.json B.json    two runs, with confidence
  pdperf handover CASE            what handing a prompt's blocks over costs, link by link
  pdperf fault --listen A --to B  put faults between two hosts
  pdperf schema                   what the fields of --json mean
  pdperf version                  what this build is

` + statusText,
		Args: cmdline.Group,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		Version: buildVersion(),
	}
	root.SetVersionTemplate("pdperf {{.Version}}\n")
	root.AddCommand(newLocal(io), newServe(io), newRun(io), newFloor(io), newFault(io), newCompare(io), newHandover(io), newSchema(io), newVersion(io))
	return root
}
