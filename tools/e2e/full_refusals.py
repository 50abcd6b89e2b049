"""Arms in which the two ends do not fit each other."""

from __future__ import annotations

import base64
import json
import struct

from full_model import turn
from full_requests import before_engine, chat, directly
from full_stage import LIMIT, Stage
from procs import KEY, MODEL, SERVED, post


def plugin_absent(stage: Stage) -> None:
    """The decoder is started without the plug-in, and with it again."""
    stage.again("decoder", lambda: stage.start_decoder(python=stage.args.bare))
    body = stage.story("plug-in absent")
    stage.declined("plug-in absent", stage.ask(body), body, "has no plug-in: install pdlink-omlx")
    stage.again("decode", stage.start_decode)
    warned = stage.parts["decode"].text()
    stage.checks.true("plug-in absent: pdlink decode says so at its start", "has no plug-in" in warned, warned[:300])
    stage.again("decoder", stage.start_decoder)
    stage.ready()
    stage.first("plug-in absent")


def model_id(stage: Stage) -> None:
    """The engine's model has another id, and nobody said that it is the decoder's."""
    stage.again("prefill", lambda: stage.start_prefill(models=()))
    stage.ready()
    body = stage.story("another model id")
    said = stage.ask(body)
    stage.declined("model id", said, body, MODEL)
    stage.checks.true("model id: what the host reads is named", SERVED in said.verdict, said.short)
    stage.again("prefill", lambda: stage.start_prefill(models=(f"{MODEL}=Some/Other",)))
    prefill = stage.parts["prefill"]
    stage.until("the sidecar's warning", lambda: "Some/Other" in prefill.text())
    warned = next(line for line in prefill.text().splitlines() if "Some/Other" in line)
    stage.checks.true("model id: a name that the engine does not serve", SERVED in warned, warned)
    stage.again("prefill", stage.start_prefill)
    stage.ready()
    stage.first("model id")


def template(stage: Stage) -> None:
    """The engine has another chat template than the decoder. The decoder's ids are what is read: nothing is wrong."""
    body = chat(stage, "another template")
    own = post(f"{stage.engine_url}/tokenize", {"model": SERVED, **body}, None, LIMIT)[2]["tokens"]
    plan = f"{stage.decoder_url}/pdlink/v1/plan?path=/v1/chat/completions"
    planned = post(plan, {"model": MODEL, **body}, KEY, LIMIT)[2]
    raw = base64.b64decode(planned["ids"])
    ids = list(struct.unpack(f"<{len(raw) // 4}I", raw))
    stage.checks.true(
        "template: the engine's own ids would be others",
        own[: len(ids)] != ids,
        f"{len(own)} tokens by the engine's template, {planned['tokens']} by the decoder's",
    )
    stage.complete("template", stage.ask(body), body)


def other_ids(stage: Stage) -> None:
    """The engine understands other ids than it was given: it declines before a block is made."""

    def swap(path: str, body: bytes) -> bytes:
        if path != "/v1/completions":
            return body
        call = json.loads(body)
        call["prompt"][5], call["prompt"][6] = call["prompt"][6], call["prompt"][5]
        return json.dumps(call).encode()

    between = before_engine(stage, before=swap)
    body = stage.story("other ids")
    stage.declined("other ids", stage.ask(body), body, "token ids are not those of the plan")
    directly(stage, between)
    stage.first("other ids")


def other_model(stage: Stage) -> None:
    """The engine has a model that rotates otherwise: of the same shape, and wrong without an error."""
    model = stage.work / "turned-model"
    turn(stage.engine_model, model)
    for role in ("prefill", "engine"):
        stage.end(role)
    stage.start_engine("plain", model)
    stage.start_prefill()
    prefill = stage.parts["prefill"]
    stage.until("the sidecar", lambda: prefill.events()[-1]["event"] == "ready", 420)
    body = stage.story("another model")
    stage.declined("another model", stage.ask(body), body, "rope")
    stage.end("prefill")
    stage.end("engine")
    stage.use("plain")
    stage.first("another model")
