package main

import (
	"github.com/spf13/cobra"
)

// newRoot builds the command tree.
func newRoot(io streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "pdperf",
		Short: "measure what a link between two hosts costs",
		Long: `pdperf moves blocks over a link and says what that cost: goodput, block times,
CPU seconds per gigabyte at both ends, what the kernel granted.

  pdperf local                    both ends on this host, two processes
  pdperf serve                    the receiving end
  pdperf run --to URL             the sending end; prints the result
  pdperf floor                    a bare sender and receiver, to compare with
  pdperf fault --listen A --to B  put faults between two hosts
  pdperf schema                   what the fields of --json mean

Exit status: 0 the run was complete and every block verified, 1 it was not,
2 the command line cannot be used.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.AddCommand(newLocal(io), newServe(io), newRun(io), newFloor(io), newFault(io), newSchema(io))
	return root
}
