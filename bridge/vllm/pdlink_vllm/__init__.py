"""Hands what a vLLM computes while it prefills to the pdlink sidecar of its host.

The package is a KV connector: vLLM loads `pdlink_vllm.connector` because its `--kv-transfer-config` names it, and
neither is changed for the other. Requests whose `kv_transfer_params` name a transfer are taken part in; all others pass
unseen. Whatever goes wrong here costs a transfer its rest, never the engine its request.

The modules, from the engine inwards: `connector` (vLLM's interface), `engine` (which versions, what was found in them),
`scheduler` (which rows a step computes), `worker` (what to do with them), `capture` (where they are), `facts` (what
model was loaded), `request` (one prompt's slots), `link` (the sidecar's socket), `ring` (the memory), `wire` (the
messages). Only the first six know the engine.
"""

__version__ = "0.1.0"
