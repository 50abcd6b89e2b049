"""What `pdlink doctor` says of real hosts. `decode_host` at any time after a request that lacked blocks; `prefill_host`
while `pdlink prefill` is stopped: the engine's workers then tell doctor what they have loaded, and the decode host
compares that with what the decoder has.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from house import House
from procs import KEY, MODEL, SERVED

LIMIT = 120  # seconds


def findings(house: House, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a doctor; returns its status and what it found."""
    done = subprocess.run(
        [str(house.args.pdlink), "doctor", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PDLINK_DECODER_KEY": KEY},
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def said(found: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    """Levels and texts of one check."""
    return [(f["level"], f["text"]) for f in found if f.get("check") == check]


def decode_host(house: House) -> None:
    """The decoder, its plug-in, its model and the store are found, and the ports in use by pdlink."""
    checks, keys = house.checks, house.work / "keys-mac"
    front = house.front.removeprefix("http://")
    where = ["--listen", house.to, "--keys", str(keys), "--decoder", house.decoder.url, "--front", front]
    status, found = findings(house, "decode", *where)
    failed = [f for f in found if f.get("level") == "fail"]
    checks.want("doctor decode: status, what failed", (status, failed), (0, []))
    levels = {name: [level for level, _ in said(found, name)] for name in ("listen", "front", "canary", "facts")}
    checks.want("doctor decode: ports, canary, facts", levels, {name: ["ok"] for name in levels})
    checks.true("doctor decode: the model", any(MODEL in text for _, text in said(found, "models")), str(found)[:300])


def prefill_host(house: House) -> None:
    """What the real engine has loaded is the real decoder's model, in everything that is compared."""
    checks, keys = house.checks, house.work / "keys-spark"
    where = ["--to", house.to, "--keys", str(keys), "--peer", "mac", "--engine", house.engine.url]
    where += ["--socket", str(house.sock), "--model", f"{MODEL}={SERVED}", "--mem-floor", "-1", "--name", "spark"]
    status, found = findings(house, "prefill", *where)
    failed = [f for f in found if f.get("level") == "fail"]
    checks.want("doctor prefill: status, what failed", (status, failed), (0, []))
    same = ("ok", f"{MODEL} is the decoder's model, in everything that is compared")
    checks.want("doctor prefill: the engine's model is the decoder's", said(found, "match"), [same])
    peer = [level for level, text in said(found, "peer") if "it is mac, and data is sealed" in text]
    checks.want("doctor prefill: the decode host is the paired one", peer, ["ok"])
