"""Arms in which a part dies, a link is cut, or a disk is full, while a prompt is read."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from full_between import Between
from full_stage import LONG, Answer, Stage
from procs import Process


def engine_killed(stage: Stage) -> None:
    """The engine dies in the middle of a prompt."""
    body = stage.story("engine killed", LONG)
    call = stage.being_read("engine killed", body)
    stage.kill("engine")
    stage.partial("engine killed", call.get(), body, "engine|worker")  # whichever is noticed first
    prefill = stage.parts["prefill"]
    stage.until("the sidecar waits for it", lambda: prefill.events()[-1]["event"] == "waiting")
    waits = prefill.events()[-1]["reason"]
    stage.checks.true("engine killed: the sidecar says so", "engine does not answer" in waits, waits)
    decode = stage.parts["decode"]
    stage.until("the decode host knows", lambda: "is connected and waits: the engine does not answer" in decode.text())
    gone = stage.story("no engine", 700)
    stage.declined("while it is away", stage.ask(gone), gone, "no prefill host takes prompts", "bypass")
    stage.start_engine("slow")
    stage.until("the sidecar is ready", lambda: prefill.events()[-1]["event"] == "ready", 420)
    stage.ready()
    stage.first("engine killed")


def sidecar_killed(stage: Stage) -> None:
    """The sidecar dies in the middle of a prompt."""
    body = stage.story("sidecar killed", LONG)
    call = stage.being_read("sidecar killed", body)
    stage.kill("prefill")
    stage.thaw("engine")
    stage.partial("sidecar killed", call.get(), body, "not connected")
    stage.start_prefill()
    stage.ready()
    stage.first("sidecar killed")


def receiver_killed(stage: Stage) -> None:
    """The receiver, and the front door with it, die in the middle of a prompt. Clients try again, as SDKs do."""
    body = stage.story("receiver killed", LONG)
    alone = stage.being_read("receiver killed", body)
    stage.kill("decode")
    try:
        said: Any = alone.get()
    except openai.APIConnectionError as err:
        said = type(err)
    stage.checks.want("receiver killed: a client that does not try again", said, openai.APIConnectionError)
    again = stage.meanwhile(body, retries=8)
    stage.start_decode()
    stage.thaw("engine")
    answer: Answer = again.get()
    stage.checks.true("receiver killed: a client that does", bool(answer.verdict), answer.short)
    stage.right("receiver killed: a client that does", answer, body)
    stage.ready()
    stage.first("receiver killed")


@contextmanager
def link(stage: Stage, *arguments: str) -> Iterator[None]:
    """Put a link that can be cut between sidecar and receiver."""
    start_link(stage, *arguments)
    stage.again("prefill", lambda: stage.start_prefill(to=f"tcp://127.0.0.1:{stage.ports['link']}"))
    stage.ready()
    yield
    stage.again("prefill", stage.start_prefill)
    stage.end("link")
    stage.ready()


def start_link(stage: Stage, *arguments: str) -> None:
    """Start the link."""
    command = [str(stage.args.pdperf), "fault", "--listen", f"tcp://127.0.0.1:{stage.ports['link']}", "--to", stage.to]
    made = stage.part("link", Process(stage.name("link"), [*command, *arguments, "--json"], stage.work))
    made.wait(lambda: '"listening"' in made.text())


def events(process: Process, name: str) -> int:
    """Events of a name."""
    lines = [json.loads(line) for line in process.text().splitlines() if line.startswith("{")]
    return sum(e["event"] == name for e in lines)


def link_cut(stage: Stage) -> None:
    """The link is cut in the middle of a prompt, and is there again at once: nothing is lost."""
    body = stage.story("link cut", LONG)
    with link(stage, "--cut-after", "4MB"):
        said = stage.ask(body)
        stage.checks.want("link cut: cuts", events(stage.parts["link"], "cut"), 1)
        stage.complete("link cut", said, body)
        lost = [e["event"] for e in stage.parts["prefill"].events() if e["event"] in ("connected", "lost")]
        stage.checks.want("link cut: the sidecar's connections", lost, ["connected", "lost", "connected"])
        stage.ready()
        stage.first("link cut")


def link_away(stage: Stage) -> None:
    """The link is away for as long as the front waits, and longer."""
    with link(stage):
        body = stage.story("link away for a moment", LONG)
        call = stage.being_read("link away for a moment", body)
        stage.kill("link")
        prefill = stage.parts["prefill"]
        stage.until("the sidecar notices", lambda: prefill.events()[-1]["event"] == "lost")
        start_link(stage)
        stage.thaw("engine")
        stage.complete("link away for a moment", call.get(), body)
        body = stage.story("link away for longer", LONG)
        call = stage.being_read("link away for longer", body)
        stage.kill("link")
        stage.thaw("engine")
        stage.partial("link away for longer", call.get(), body, "not connected")
        start_link(stage)
        stage.ready()
        stage.first("link away for longer")


@contextmanager
def before_decoder(stage: Stage, between: Between) -> Iterator[None]:
    """Put a server between front and decoder."""
    stage.again("decode", lambda: stage.start_decode(between.url))
    stage.ready()
    yield
    stage.again("decode", stage.start_decode)
    stage.ready()
    between.shutdown()


def decoder_restarted(stage: Stage) -> None:
    """The decoder dies between adoption and request, and is there again, or not."""
    back = [True]
    hit: list[str] = []

    def restart(path: str, body: bytes) -> bytes:
        if path == "/v1/completions" and not hit:
            hit.append(path)
            stage.kill("decoder")
            if back[0]:
                stage.start_decoder(stage.store)
        return body

    with before_decoder(stage, Between(stage.decoder_url, before=restart)):
        body = stage.story("decoder restarted")
        said = stage.ask(body)
        stage.checks.want("decoder restarted: after adoption", hit, ["/v1/completions"])
        stage.complete("decoder restarted", said, body)
        stage.first("decoder restarted")
        back[0] = False
        hit.clear()
        body = stage.story("decoder gone")
        try:
            wrong: Any = stage.ask(body)
        except openai.InternalServerError as err:
            wrong = (err.status_code, "cannot be reached" in str(err))
        stage.checks.want("decoder gone: the client is told", wrong, (502, True))
        stage.start_decoder(stage.store)
        body = stage.story("decoder gone")
        said = stage.ask(body)
        whole = stage.record(said)["promised"]
        good = said.verdict.startswith("complete") or "; warm" in said.verdict
        stage.checks.true("decoder gone: first request after it", good, said.short)
        stage.checks.want("decoder gone: cached tokens", (said.cached, whole > 0), (whole, True))
        stage.right("decoder gone: first request after it", said, body)


@contextmanager
def small_disk(stage: Stage, name: str, size: str) -> Iterator[Path]:
    """A file system of a few megabytes for the decoder's store, and the decoder over it. Root."""
    place, usual = stage.work / name, stage.store
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "pdlink-e2e", str(place)], check=True)
    try:
        stage.end("decode")
        stage.again("decoder", lambda: stage.start_decoder(place / "store"))
        yield place
    finally:
        stage.end("decode")
        stage.end("decoder")
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        stage.start_decoder(usual)
        stage.start_decode()
        stage.ready()


def store_full(stage: Stage) -> None:
    """The store has no room: it is known at plan time, or turns out later."""
    with small_disk(stage, "too-small", "3m"):
        stage.start_decode()
        stage.ready()
        body = stage.story("store too small")
        stage.declined("store too small", stage.ask(body), body, "space")
    with small_disk(stage, "filled", "24m") as place:
        ballast = place / "ballast"

        def fill(path: str, _: bytes) -> None:
            if path == "/pdlink/v1/plan" and not ballast.exists():
                free = 2 * 800 << 10  # room for two blocks
                size = shutil.disk_usage(place).free - free
                ballast.write_bytes(b"\0" * size)

        between = Between(stage.decoder_url, after=fill)
        stage.start_decode(between.url)
        stage.ready()
        body = stage.story("store filled")
        stage.partial("store filled", stage.ask(body), body, "no space left")
        ballast.unlink()
        ballast = place / "none"
        ballast.touch()
        stage.first("store filled")
        between.shutdown()
