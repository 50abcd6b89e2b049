"""The plug-in in a real decoder: plan, blocks by pdlink, adopt, request (see README.md)."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from server import HOOK, LAUNCHER, Server

STEPS = 16  # greedy tokens compared
STORE_LIMIT = 30  # seconds that the decoder may take to store what it has answered
PATH = "/v1/completions"


class Checks:
    """Counts and prints checks, one line each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def want(self, name: str, got: Any, wanted: Any) -> None:
        """Pass when both are equal."""
        good = got == wanted
        self.passed += good
        self.failed += not good
        shown = str(got)[:200] if good else f"{str(got)[:500]}, wanted {str(wanted)[:500]}"
        print(f"{'ok  ' if good else 'FAIL'} {name}: {shown}", flush=True)

    def says(self, name: str, got: str, part: str) -> None:
        """Pass when a text has a part."""
        self.want(name, got if part in got else [got], got if part in got else part)


class Setting:
    """What all parts share: the prompt as text, the case, the program."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.pdlink, self.case, self.work = args.pdlink, args.case, args.work
        self.models = args.work / "models"
        self.models.mkdir()
        shutil.copytree(args.model, self.models / "tiny-qwen3")
        self.about: dict[str, Any] = json.loads((args.case / "case.json").read_text())
        self.ids: list[int] = self.about["tokens"]
        self.blocks = len(self.about["blocks"])
        self.whole = self.blocks * self.about["block_size"]
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(str(args.model))
        self.text = self.tokenizer.decode(self.ids)

    @property
    def request(self) -> dict[str, Any]:
        """The request for the prompt."""
        return {"model": "tiny-qwen3", "prompt": self.text, "max_tokens": STEPS, "temperature": 0}

    def server(self, way: tuple[str, ...], name: str, base: str) -> Server:
        """A server over a store of this name."""
        return Server(way, self.models, self.work / name, self.work / base)

    def replay(self, plan: dict[str, Any], info: dict[str, Any], store: Path) -> dict[str, Any]:
        """Let pdlink write the plan's blocks: the case under the decoder's own name of the model, with its options."""
        case = self.work / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        shutil.copy(self.case / "capture.safetensors", case)
        described = json.loads(info["model"]["native"]["header"])["__metadata__"]
        options = {"no_block_size": "block_size" not in described, "no_signature": "cache_signature" not in described}
        about = {**self.about, "model": plan["hash_model"], "blocks": plan["hashes"], "layout_options": options}
        (case / "case.json").write_text(json.dumps(about))
        command = [str(self.pdlink), "replay", str(case), "--store", str(store), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"pdlink replay exited with {done.returncode}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def cached(answer: dict[str, Any]) -> int:
    """Cached tokens of an answer."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def check_main(checks: Checks, s: Setting) -> None:
    """By the hook: key, plan, native answer, blocks by pdlink, bad blocks, adoption, the same answer."""
    with s.server(HOOK, "native", "base-native") as server:
        status, native = server.call(PATH, s.request)
        checks.want("native answer, cached tokens", (status, cached(native)), (200, 0))
    with s.server(HOOK, "store", "base") as server:
        for path in ("info", "plan", "adopt", "evict"):
            body = None if path == "info" else {}
            checks.want(f"{path} without the key", server.call(f"/pdlink/v1/{path}", body, key=None)[0], 401)
            checks.want(f"{path} with a wrong key", server.call(f"/pdlink/v1/{path}", body, key="open")[0], 401)
        status, info = server.call("/pdlink/v1/info")
        checks.want("info: paths that cannot be planned", [p for p, why in info["plans"].items() if why], [])
        plan, said = watched(server, PATH, s.request)
        checks.want("info while it starts: it says so", sorted(said - {""}) != [], True)
        print(f"note info while it starts: {sorted(said)}", flush=True)
        found = (plan["tokens"], plan["blocks"], plan["present"])
        checks.want("plan: tokens, blocks, present", found, (len(s.ids), s.blocks, 0))
        packed = struct.pack(f"<{s.whole}I", *s.ids[: s.whole])
        checks.want("plan: ids", base64.b64decode(plan["ids"]) == packed, True)
        status, info = server.call("/pdlink/v1/info?model=tiny-qwen3")
        checks.want("info: layout is the plan's", info["model"]["layout"], plan["layout"])
        checks.want("info behind it: starting", info["starting"], "")
        other_paths(checks, s, server)
        report = s.replay(plan, info, s.work / "store")
        checks.want("replay verdict, blocks", (report["verdict"], report["blocks"]), ("complete", s.blocks))
        bad_blocks(checks, server, plan, s.work / "store")
        call = {"model": "tiny-qwen3", "hashes": plan["hashes"]}
        status, adopted = server.call("/pdlink/v1/adopt", call)
        checks.want("adopt: blocks, reason", (adopted["blocks"], adopted["reason"]), (s.blocks, ""))
        checks.want("plan: present", server.plan(PATH, s.request)[1]["present"], s.blocks)
        status, answer = server.call(PATH, s.request)
        checks.want("cached tokens", cached(answer), s.whole)
        checks.want("greedy tokens as native", answer["choices"][0]["text"] == native["choices"][0]["text"], True)
        status, gone = server.call("/pdlink/v1/evict", {**call, "hashes": plan["hashes"][-1:]})
        checks.want("evict", gone["evicted"], plan["hashes"][-1:])
        checks.want("plan after evict: present", server.plan(PATH, s.request)[1]["present"], s.blocks - 1)
        cost(checks, s, server)
        checks.want("plans hold no model: unload", server.call("/v1/models/tiny-qwen3/unload", {})[0], 200)
        checks.want("plan loads it again: present", server.plan(PATH, s.request)[1]["present"], s.blocks - 1)


def watched(server: Server, path: str, body: Any) -> tuple[dict[str, Any], set[str]]:
    """A plan, and all that info says meanwhile of what the decoder does before it can make one."""
    said: set[str] = set()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(server.plan, path, body)
        while not call.done():
            said.add(server.call("/pdlink/v1/info")[1]["starting"])
            time.sleep(0.01)
        return call.result()[1], said


def cost(checks: Checks, s: Setting, server: Server) -> None:
    """What a plan costs against one tokenisation of the same text: printed, because the machine may be busy.

    In turn, the best of each: what is above that is the machine's.
    """
    text = s.text * 20
    call = {**s.request, "prompt": text}
    checks.want("plan of a long prompt: blocks", server.plan(PATH, call)[1]["blocks"] > 100, True)
    alone, plans = [], []
    for _ in range(15):
        alone.append(timed(lambda: s.tokenizer.encode(text)))
        plans.append(timed(lambda: server.plan(PATH, call)))
    best, plan = min(alone), min(plans)
    print(f"note plan {1e3 * plan:.1f} ms, one tokenisation {1e3 * best:.1f} ms: {plan / best:.2f} times", flush=True)


def timed(run: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def other_paths(checks: Checks, s: Setting, server: Server) -> None:
    """Plans of the other APIs count the tokens that the decoder counts."""
    text = s.text[:1500]
    tool = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
    talk = [{"role": "system", "content": "be short"}, {"role": "user", "content": text}]
    talk += [{"role": "assistant", "content": "well"}, {"role": "user", "content": [{"type": "text", "text": "and?"}]}]
    tools = [{"type": "function", "function": tool}]
    for name, path, body in (
        ("chat", "/v1/chat/completions", {"messages": talk, "max_tokens": 1}),
        ("tools", "/v1/chat/completions", {"messages": talk, "tools": tools, "max_tokens": 1}),
        ("responses", "/v1/responses", {"input": text, "max_output_tokens": 1}),
    ):
        body["model"] = "tiny-qwen3"
        planned = server.plan(path, body)[1]
        streamed = server.plan(path, {**body, "stream": True})[1]
        usage = server.call(path, body)[1]["usage"]
        want = usage.get("prompt_tokens") or usage["input_tokens"]
        checks.want(f"plan of {name}: tokens, streamed too", (planned["tokens"], streamed["tokens"]), (want, want))
        checks.want(f"plan of {name} after it: present", stored(server, path, body), planned["blocks"])
    message = {"model": "tiny-qwen3", "messages": talk[1:], "max_tokens": 1}
    planned = server.plan("/v1/messages", message)[1]
    checks.want("plan of messages: blocks", planned["blocks"] > 0, True)
    for name, body in (("two prompts", {"prompt": ["a", "b"]}), ("no model", {"model": "none", "prompt": "a"})):
        status, answer = server.plan(PATH, {"model": "tiny-qwen3", **body})
        checks.want(f"plan of {name}", (status, answer["error"]["code"]), (422, "unplannable"))


def stored(server: Server, path: str, body: Any) -> int:
    """Present blocks of a request that was answered: the decoder stores them soon after its answer."""
    end = time.monotonic() + STORE_LIMIT
    while True:
        plan = server.plan(path, body)[1]
        if plan["present"] == plan["blocks"] or time.monotonic() > end:
            return int(plan["present"])
        time.sleep(0.05)


def bad_blocks(checks: Checks, server: Server, plan: dict[str, Any], store: Path) -> None:
    """Damaged and foreign files under a block's name are refused, with the blocks behind them."""
    digest = plan["hashes"][1]
    path = store / digest[0] / f"{digest}.safetensors"
    good = path.read_bytes()
    (length,) = struct.unpack("<Q", good[:8])

    def header(edit: Callable[[dict[str, Any]], None]) -> bytes:
        parsed = json.loads(good[8 : 8 + length])
        edit(parsed)
        text = json.dumps(parsed, separators=(",", ":")).encode()
        return struct.pack("<Q", len(text)) + text + good[8 + length :]

    def shape(h: dict[str, Any]) -> None:
        for name, t in h.items():
            if name != "__metadata__":
                t["shape"] = [t["shape"][2], t["shape"][1], t["shape"][0], t["shape"][3]]

    def model(h: dict[str, Any]) -> None:
        h["__metadata__"]["model_name"] = "other"

    def half(h: dict[str, Any]) -> None:
        h["__metadata__"]["half a character \ud800"] = "1"

    nested = b'{"__metadata__":' * 100_000

    variants = {
        "wrong shape": header(shape),
        "another model": header(model),
        "half a character": header(half),
        "nested deeply": struct.pack("<Q", len(nested)) + nested + good[8 + length :],
        "values not finite": good[:-4096] + b"\xff\x7f" * 2048,
        "cut short": good[:-1],
    }
    for name, raw in variants.items():
        path.write_bytes(raw)
        status, got = server.call("/pdlink/v1/adopt", {"model": "tiny-qwen3", "hashes": plan["hashes"][:3]})
        found = (status, got["blocks"], sorted(got["refused"]) == sorted(plan["hashes"][1:3]))
        checks.want(f"adopt with {name}: blocks", found, (200, 1, True))
    path.write_bytes(good)


def check_restart(checks: Checks, s: Setting) -> None:
    """By the launcher: killed after the adoption, the next start finds the blocks, and an adoption knows them."""
    with s.server(LAUNCHER, "restart", "base-restart") as server:
        plan = server.plan(PATH, s.request)[1]
        info = server.call("/pdlink/v1/info?model=tiny-qwen3")[1]
        s.replay(plan, info, s.work / "restart")
        call = {"model": "tiny-qwen3", "hashes": plan["hashes"]}
        checks.want("launcher: adopted", server.call("/pdlink/v1/adopt", call)[1]["blocks"], s.blocks)
        server.kill()
    with s.server(LAUNCHER, "restart", "base-restart") as server:
        checks.want("after a restart: cached tokens", cached(server.call(PATH, s.request)[1]), s.whole)
        got = server.call("/pdlink/v1/adopt", call)[1]
        found = (got["blocks"], got["known"] == plan["hashes"])
        checks.want("after a restart: adopt knows the blocks", found, (s.blocks, True))


def check_tail(checks: Checks, s: Setting) -> None:
    """What lies behind the last whole block comes too: one token is left, and the answer is the decoder's own."""
    with s.server(HOOK, "native-tail", "base-native-tail") as server:
        native = server.call(PATH, s.request)[1]
    with s.server(HOOK, "tail", "base-tail") as server:
        plan = server.call(f"/pdlink/v1/plan?path={PATH}&tail=1", s.request)[1]
        tail = plan.get("tail") or {}
        checks.want("tail: tokens", tail.get("tokens"), len(s.ids) - 1 - s.whole)
        checks.want("tail: ids", len(base64.b64decode(plan["ids"])) // 4, len(s.ids) - 1)
        info = server.call("/pdlink/v1/info?model=tiny-qwen3")[1]
        s.replay(plan, info, s.work / "tail")
        path = s.work / "tail" / tail["hash"][0] / f"{tail['hash']}.safetensors"
        path.write_bytes(tail_file(s, s.work / "tail", plan))
        call = {"model": "tiny-qwen3", "hashes": plan["hashes"], "tail": tail["hash"]}
        got = server.call("/pdlink/v1/adopt", call)[1]
        checks.want("tail: adopted", (got["blocks"], got.get("tail"), got["reason"]), (s.blocks, tail["tokens"], ""))
        checks.want("tail: its file is gone", path.exists(), False)
        for name in ("once", "again"):
            answer = server.call(PATH, s.request)[1]
            checks.want(f"tail: cached tokens, {name}", cached(answer), len(s.ids) - 1)
            same = answer["choices"][0]["text"] == native["choices"][0]["text"]
            checks.want(f"tail: greedy tokens as native, {name}", same, True)
        other = {**s.request, "prompt": s.text + " and more"}
        checks.want("tail: not of another prompt", cached(server.call(PATH, other)[1]), s.whole)
        got = server.call("/pdlink/v1/adopt", {**call, "tail": "ab" * 32})[1]
        checks.want("tail: one that was not planned", (got["blocks"], got["tail"]), (s.blocks, 0))


def tail_file(s: Setting, store: Path, plan: dict[str, Any]) -> bytes:
    """The rows behind the last whole block, as a block file under the tail's hash."""
    import mlx.core as mx
    import mlx_lm
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache

    model = mlx_lm.load(str(s.models / "tiny-qwen3"))[0]
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([s.ids[:-1]]), cache=caches))
    last = plan["hashes"][-1]
    raw = (store / last[0] / f"{last}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    data = b""
    for cache in caches:
        for all_rows in (cache.keys, cache.values):
            rows = np.array(all_rows[0, :, s.whole : len(s.ids) - 1].view(mx.uint16))
            full = np.zeros((rows.shape[0], s.about["block_size"], rows.shape[2]), np.uint16)
            full[:, : rows.shape[1]] = rows
            data += full.tobytes()
    return raw[:8] + raw[8 : 8 + length].replace(last.encode(), plan["tail"]["hash"].encode()) + data


def check_dsv4(checks: Checks, s: Setting) -> None:
    """DeepSeek-V4 shape, engine in this process: the decoder's own block says that pdlink's blocks are right."""
    import checks as replays  # of bridge/omlx/testdecoder
    from pdlink_omlx import canary, rules, seam

    import decoder
    import dsv4_case

    decoder.widen_gather_mm()
    model_dir, case, store = s.work / "v4-model", s.work / "tiny-dsv4", s.work / "v4-store"
    dsv4_case.make_model(model_dir, s.models / "tiny-qwen3")
    blocks = len(s.ids) // dsv4_case.BLOCK_SIZE
    dsv4_case.make_case(case, model_dir, s.ids, blocks * dsv4_case.BLOCK_SIZE)
    replays.replay(s.pdlink, case, store)
    hashes = json.loads((case / "case.json").read_text())["blocks"]

    async def run() -> None:
        engine = decoder.Decoder(model_dir, case.name, s.work / "v4-live", dsv4_case.BLOCK_SIZE)
        await engine.start()
        live = seam.live_of(SimpleNamespace(_engine=engine._core), case.name)
        native = await asyncio.get_running_loop().run_in_executor(live.executor, canary.make, live)
        described = native.header.meta
        ours = (store / hashes[0][0] / f"{hashes[0]}.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", ours[:8])
        extra = set(json.loads(ours[8 : 8 + length])["__metadata__"]) - set(described)
        window = native.header.tensors["layer_1_sub_0_state_0"].shape[2]
        for k, digest in enumerate(hashes):
            path = store / digest[0] / f"{digest}.safetensors"
            found = fault(path, bytes.fromhex(digest), k, extra, native)
            if window == dsv4_case.CONFIG["sliding_window"]:
                checks.want(f"dsv4: block {k} by the canary", found, None)
            else:  # the fork stores members' windows as long as its chunks: not what pdlink writes, and said so
                name = f"dsv4: block {k} by the canary, whose windows have {window} tokens"
                checks.says(name, str(found), "not '1,1,512,0'")
        checks.want("dsv4: the canary's chain", seam.chain(live, s.ids, blocks), [bytes.fromhex(h) for h in hashes])
        await engine.stop()

    def fault(path: Path, digest: bytes, k: int, extra: set[str], native: Any) -> str | None:
        # Keys that this fork does not write, as an option of pdlink leaves them out too.
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        parsed = json.loads(raw[8 : 8 + length])
        for key in extra & {"block_size", "cache_signature"}:
            del parsed["__metadata__"][key]
        text = json.dumps(parsed, separators=(",", ":")).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
        return rules.fault(native, path, digest, k)

    asyncio.run(run())


def main() -> int:
    """Run all parts; one that cannot run to its end counts as failed and does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pdlink", type=Path, required=True, help="program whose blocks are adopted")
    parser.add_argument("--case", type=Path, required=True, help="the kv-qwen3 case directory")
    parser.add_argument("--model", type=Path, required=True, help="the model directory of that case")
    parser.add_argument("--work", type=Path, required=True, help="empty directory for everything made")
    parser.add_argument("--parts", default="main,restart,tail,dsv4", help="which parts to run")
    args = parser.parse_args()
    setting = Setting(args)
    checks = Checks()
    parts = {"main": check_main, "restart": check_restart, "tail": check_tail, "dsv4": check_dsv4}
    for name in args.parts.split(","):
        try:
            parts[name](checks, setting)
        except Exception as err:
            traceback.print_exc()
            checks.want(f"{name} ran to its end", f"{type(err).__name__}: {err}", "")
    print(f"{checks.passed} passed, {checks.failed} failed", flush=True)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the decoder's worker threads do not end by themselves
