"""DeepSeek-V4 through all of pdlink: vLLM reads, the sidecar projects, a twin says what must come (see README.md)."""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import twin
from house import STEPS, Checks
from places import CONNECTOR, SHIM, TESTDECODER, TESTWRITER
from played import CREATED, Planner, Play
from procs import KEY, Engine, Pdlink, get, pair, post
from tokenizers import Tokenizer

sys.path.insert(0, str(TESTWRITER))
sys.path.insert(0, str(CONNECTOR / "tests"))
sys.path.insert(0, str(CONNECTOR))

import sidecar
import write_blocks
from pdlink_vllm.wire import Kind, What

MODEL, SERVED = "tiny-v4", "Deep/Tiny"
BLOCK = 512  # the decoder's own choice for a window of 128
PATH = "/v1/completions"
READ_LIMIT = 600  # seconds for the engine to read a prompt; Triton's interpreter takes some ten on an idle machine
RUN_LIMIT = 600  # and for a decoder's script

# KL(native || arm), mean over the rest of the prompt and the decoded tokens, in nats: what ours may have at most, what
# the others must have at least.
OURS, WRONG, LATE = 3e-4, 1e-2, 1e-3

# Metadata of blocks as oMLX 0.5.3 writes them, as far as their form depends on it.
THREE = {"omlx_cache_format_version": "3", "layer_1_sub_1_state_count": "3", "created_at": CREATED}

Inputs = list[twin.Bits]


class Setting:
    """What all parts share: the model, prompts, and where everything lies."""

    def __init__(self, args: argparse.Namespace, checks: Checks, work: Path) -> None:
        self.args, self.checks, self.work = args, checks, work
        work.mkdir()
        self.models = work / "models"
        self.models.mkdir()
        self.model = self.models / MODEL
        self.model.symlink_to(args.v4.resolve())
        self.store, self.sock = work / "store", work / "engine.sock"
        self.tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        about = json.loads((args.case / "case.json").read_text())
        self.prompt: str = self.tokenizer.decode(about["tokens"], skip_special_tokens=False)
        self.ids = self.encode(self.prompt)
        self.other = list(reversed(self.ids))
        self.blocks = (len(self.ids) - 1) // BLOCK
        self.checkpoint = twin.Checkpoint(self.model)
        self.layers = int(self.checkpoint.config["num_hidden_layers"])
        self.running: list[Any] = []

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def keep(self, process: Any) -> Any:
        """End a process with the setting."""
        self.running.append(process)
        return process

    def stop(self) -> None:
        """End all, the last that was started first."""
        while self.running:
            self.running.pop().stop()

    def engine(self) -> Engine:
        """vLLM with the shim that lets its DeepSeek-V4 run on a CPU."""
        a, env = self.args, {"PYTHONPATH": str(SHIM), "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        more: dict[str, Any] = {"name": "vllm-v4", "served": SERVED, "env": env, "extra": {"wait_ms": 30000}}
        more["arguments"] = ("--max-model-len", "4096")
        return Engine(a.vllm, a.connector, self.model, self.sock, self.work, "bfloat16", **more)

    def weights(self) -> Path:
        """The decoder's projection weights, by the command that users have."""
        out = self.work / "projection.safetensors"
        code = "import sys; from pdlink_vllm.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "weights", "export", str(self.model), "--out", str(out)]
        env = {**os.environ, "PYTHONPATH": str(self.args.connector)}
        subprocess.run(command, check=True, env=env, timeout=RUN_LIMIT, stdout=subprocess.DEVNULL)
        return out

    def script(self, name: str, job: dict[str, Any], source: Path | None) -> dict[str, Any]:
        """Run a script with the decoder's interpreter; source is the tree of another decoder."""
        path, out = self.work / f"{name}.json", self.work / f"{name}.out.json"
        path.write_text(json.dumps(job))
        file = "measure.py" if "arms" in job else "given.py"
        paths = [*([str(source)] if source else []), str(TESTDECODER)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [str(self.args.decoder), str(Path(__file__).parent / file), str(path), str(out)]
        log = self.work / f"{name}.log"
        with log.open("w") as f:
            code = subprocess.run(command, env=env, stdout=f, stderr=f, timeout=RUN_LIMIT, check=False).returncode
        if code:
            raise RuntimeError(f"{file} ended with {code}:\n{log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


class Arrays:
    """Arrays by name, as the writer of the tests wants them."""

    def __init__(self, arrays: dict[str, twin.Bits]) -> None:
        self._arrays = arrays

    def get(self, name: str) -> Any:
        """One array."""
        a = self._arrays[name]
        return write_blocks.Array("BF16", list(a.shape), a.tobytes())


def writer(s: Setting, ids: list[int], name: str, like: dict[str, str]) -> Any:
    """The tests' writer of block files, for a prompt under a model's name: as a file with this metadata was written."""
    fmt, count = like["omlx_cache_format_version"], int(like["layer_1_sub_1_state_count"])
    case = {"kind": "dsv4", "block_size": BLOCK, "model": name, "config": s.checkpoint.config, "tokens": ids}
    case["blocks"] = [""] * (len(ids) // BLOCK)
    return write_blocks.Writer(case, fmt, count - (fmt != "3"), like["created_at"], {})


def expected(s: Setting, inputs: Inputs) -> dict[str, twin.Bits]:
    """The arrays that a decoder caches of inputs."""
    blocks = len(inputs[0]) // BLOCK
    layers = twin.project(s.checkpoint, [x[: blocks * BLOCK] for x in inputs])
    return twin.arrays(layers, int(s.checkpoint.config["sliding_window"]), BLOCK, blocks)


def put(s: Setting, store: Path, arrays: dict[str, twin.Bits], name: str, like: dict[str, str]) -> Path:
    """Write the twin's blocks under the prompt's hashes."""
    w = writer(s, s.ids, name, like)
    for k, digest in enumerate(w.chain()[: s.blocks]):
        path = store / digest.hex()[0] / f"{digest.hex()}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(w.block(Arrays(arrays), k, digest))
    return store


def header_of(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """A block file's header and data."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def native_header(s: Setting, ids: list[int]) -> tuple[str, int]:
    """The header of a first block of zeros, and the length of its data."""
    w = writer(s, ids, MODEL, THREE)
    zeros = expected(s, [np.zeros((BLOCK, int(s.checkpoint.config["hidden_size"])), np.uint16)] * s.layers)
    raw: bytes = w.block(Arrays(zeros), 0, w.chain()[0])
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[8 : 8 + length].decode().rstrip(" "), len(raw) - 8 - length


def start(s: Setting, engine: Engine, decoder: str) -> str:
    """Start `pdlink decode` and `pdlink prefill`, and return the front door's URL."""
    a, mac, spark = s.args, s.work / "keys-mac", s.work / "keys-spark"
    pair(a.pdlink, mac, spark)
    arguments = ["--listen", "tcp://127.0.0.1:0", "--keys", str(mac), "--decoder", decoder, "--front", "127.0.0.1:0"]
    decode = s.keep(Pdlink(a.pdlink, "decode", [*arguments, "--min-tokens", "300", "--min-tail", "200"], s.work))
    decode.wait(lambda: decode.saw(event="listening"))
    arguments = ["--to", decode.events()[0]["listen"], "--keys", str(spark), "--peer", "mac", "--name", "spark"]
    arguments += ["--engine", engine.url, "--socket", str(s.sock), "--model", f"{MODEL}={SERVED}", "--mem-floor", "-1"]
    arguments += ["--weights", str(s.weights()), "--numerics", "mlx-cpu"]
    arguments += ["--model-config", str(s.model / "config.json")]
    prefill = s.keep(Pdlink(a.pdlink, "prefill", arguments, s.work))
    prefill.wait(lambda: prefill.saw(event="ready"))
    decode.wait(lambda: "reads prompts for" in decode.text())
    return f"http://{decode.events()[0]['front']}"


def bridge(s: Setting, front: str, name: str, prompt: str) -> None:
    """Send a prompt through the front door and demand that all its whole blocks were brought and used."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": STEPS, "temperature": 0}
    status, headers, answer = post(front + PATH, body, KEY, READ_LIMIT)
    tokens = len(s.encode(prompt))
    whole = (tokens - 1) // BLOCK * BLOCK
    s.checks.want(f"{name}: status", status, 200)
    s.checks.want(f"{name}: verdict", headers.get("X-PDLink", "").split(";")[0], f"complete {whole}/{tokens} tokens")
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"] if status == 200 else None
    s.checks.want(f"{name}: cached tokens", cached, whole)


def capture(s: Setting, engine: Engine, prompts: dict[str, list[int]]) -> dict[str, Inputs]:
    """What the connector captures of prompts: the tests' own sidecar takes it while `pdlink prefill` is not there.

    The engine is warm then, and the front door's patience with one that it does not know is enough.
    """
    listener = sidecar.Sidecar(s.sock, sidecar.Options(slots=16, slot_size=64 << 10))
    hidden = int(s.checkpoint.config["hidden_size"])
    out = {}
    try:
        engine.wait(lambda: bool(listener.hellos) and get(engine.url + "/health")[0] == 200)
        for name, ids in prompts.items():
            transfer, blocks = name.encode().ljust(16, b"."), (len(ids) - 1) // BLOCK
            listener.plan(transfer, sidecar.Plan(Kind.DSV4, blocks, BLOCK, 1 << 20, (0, s.layers)))
            ask = {"kv_transfer_params": {"pdlink": {"transfer": transfer.hex()}}}
            body = {"model": SERVED, "prompt": ids[: blocks * BLOCK], "max_tokens": 1, "temperature": 0, **ask}
            status, _, answer = post(engine.url + PATH, body, None, READ_LIMIT)
            if status != 200:
                raise RuntimeError(f"the engine answers {status}: {answer}")
            t = listener.wait(transfer, 60)
            rows = [t.layer_rows(layer, What.X) for layer in range(s.layers)]
            if t.aborted or any(first for first, _ in rows):
                raise RuntimeError(f"capture of {name}: {t.aborted}, from {[first for first, _ in rows]}")
            out[name] = [np.frombuffer(data, np.uint16).reshape(-1, hidden) for _, data in rows]
        s.checks.want("captured rows", {len(x) for c in out.values() for x in c}, {s.blocks * BLOCK})
        return out
    finally:
        listener.kill()


def compare(s: Setting, arrays: dict[str, twin.Bits], store: Path, name: str) -> None:
    """Hold pdlink's blocks against the twin's and the tests' writer, byte for byte."""
    for k, digest in enumerate(chain(s, s.ids, name)[: s.blocks]):
        raw = (store / digest.hex()[0] / f"{digest.hex()}.safetensors").read_bytes()
        head, data = header_of(raw)
        wanted = writer(s, s.ids, name, head["__metadata__"]).block(Arrays(arrays), k, digest)
        theirs, other = header_of(wanted)
        bad = []
        for tensor, t in head.items():
            if tensor != "__metadata__" and t == theirs.get(tensor):
                begin, end = t["data_offsets"]
                a, b = (np.frombuffer(x[begin:end], np.uint16) for x in (data, other))
                bad += [f"{tensor}: {int((a != b).sum())} of {a.size}"] if (a != b).any() else []
        s.checks.want(f"block {k}: arrays that are not the twin's", bad, [])
        s.checks.true(f"block {k}: file is the twin's, byte for byte", raw == wanted, f"{len(raw)} bytes")


def run(args: argparse.Namespace, checks: Checks) -> None:
    """vLLM reads, pdlink makes the blocks, the twin makes them too; then the decoder of PyPI loads them."""
    s = Setting(args, checks, args.work / "v4")
    try:
        checks.part("DeepSeek-V4: vLLM, pdlink decode, pdlink prefill with the projection in Go")
        engine = s.keep(s.engine())
        inputs = capture(s, engine, {"own": s.ids})
        told = twin.facts(s.checkpoint)
        play = Play(
            MODEL, BLOCK, s.store, s.encode, lambda i: chain(s, i, MODEL), lambda i: native_header(s, i), told
        )
        planner = Planner(play)
        front = start(s, engine, planner.url)
        bridge(s, front, "v4, one block", "One block. " + s.prompt[: len(s.prompt) // 2])
        bridge(s, front, "v4", s.prompt)
        checks.want("v4: pdlink prefill ends in order", s.running.pop().stop(), 0)
        planner.shutdown()
    finally:
        s.stop()
    arrays = expected(s, inputs["own"])
    compare(s, arrays, s.store, MODEL)
    np.savez(s.work / "arrays.npz", **arrays)  # type: ignore[arg-type]
    checks.part("DeepSeek-V4: the decoder of PyPI loads the blocks")
    job = {"model": str(s.model), "name": MODEL, "store": str(s.store), "ids": s.ids, "block": BLOCK, "steps": STEPS}
    found = s.script("load", {**job, "expect": str(s.work / "arrays.npz")}, None)
    whole = s.blocks * BLOCK
    checks.want("v4: loaded: cached tokens, restored tokens", (found["cached"], found["covered"]), (whole, whole))
    checks.want("v4: loaded: restored arrays that differ", found["different"], [])
    got = (found["arrays"], found["finite"], found["tokens"])
    checks.want("v4: loaded: arrays, finite logits, tokens", got, (9, True, STEPS))


def chain(s: Setting, ids: list[int], name: str) -> list[bytes]:
    """Hashes of a prompt's whole blocks."""
    found: list[bytes] = writer(s, ids, name, THREE).chain()
    return found
