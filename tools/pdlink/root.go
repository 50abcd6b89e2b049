package main

import (
	"github.com/spf13/cobra"
)

// newRoot builds the command tree.
func newRoot(std streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "pdlink",
		Short: "let one machine prefill and another decode",
		Long: `pdlink moves finished prefix-cache blocks from a machine that prefills to the
store of a decoder, where they are an ordinary prefix hit.

  pdlink demo                     see the whole job run on what is built in
  pdlink decode --store DIR       receive blocks on the decoder's host
  pdlink decode --decoder URL     the same, with a front door for clients
  pdlink prefill --to URL         read prompts with this host's engine
  pdlink doctor decode            say what is wrong on a host, and what to do
  pdlink doctor prefill           the same on a prefill host
  pdlink doctor rdma              the same for rdma:// links
  pdlink replay CASE --to URL     send the blocks of a recorded prefill
  pdlink store verify DIR         check what is in a store
  pdlink verify CASE              hold the GPU's arithmetic against a decoder's
  pdlink bench --front URL …      measure what bridging brings
  pdlink keys init                make two hosts trust each other
  pdlink config show              say what the config file and variables set
  pdlink service print decode     have it started with the host

Three recorded prefills, cases, are built in ("bundled:kv-qwen3" …).

` + statusText,
		Args:    group,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
		Version: thisBuild().Version,
	}
	root.SetVersionTemplate("pdlink {{.Version}}\n")
	config := &configFlags{}
	config.register(root)
	decode, prefill := new(decodeFlags), new(prefillFlags)
	decodes, prefills := decode.command(std), prefill.command(std)
	look := checks{
		decodes.Name():  func(g given) error { _, err := decode.check(g); return err },
		prefills.Name(): prefill.check,
	}
	replays := newReplay(std)
	config.tell(decodes, prefills, replays)
	completeFixed(decodes, prefills, replays)
	root.AddCommand(replays, decodes, prefills, newDoctor(std, patients{config: config, decode: decode, decodes: decodes, prefill: prefill, prefills: prefills}), newStore(std), newVerify(std), newBench(std), newDemo(std), newCost(std), newKeys(std), newConfig(std, config, look),
		newService(std, config, look, map[string]*watchFlags{"decode": &decode.watching, "prefill": &prefill.watching}), newVersion(std))
	return root
}
