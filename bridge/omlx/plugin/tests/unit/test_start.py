"""Ways to start: the import hook, the launcher, and adding the endpoints; each says why when it cannot."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import fakes
import pytest
from pdlink_omlx import __main__, dryrun, install
from pdlink_omlx.errors import Refusal

ROOT = Path(__file__).resolve().parents[2]

SERVER = """
class State: pass
class App:
    def __init__(self): self.added, self.state, self.routes = [], State(), []
    def add_api_route(self, path, handler, **more): self.added.append((path, more["methods"], more["dependencies"]))
app = App()
def verify_api_key(): pass
loader, spec = __loader__, __spec__
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of packages with a decoder and a web framework in it."""
    package = tmp_path / "omlx"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER)
    (package / "cli.py").write_text("import sys\ndef main():\n    print('decoder', sys.argv)\n    return 3\n")
    for name, text in (
        ("fastapi/__init__.py", "class Depends:\n    def __init__(self, f): self.f = f\n"),
        ("fastapi/responses.py", "class Response: pass\n"),
        ("starlette/__init__.py", ""),
        ("starlette/requests.py", "class Request: pass\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def python(site: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "PYTHONDONTWRITEBYTECODE": "1", **env}
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site, timeout=60)


def test_hook(site: Path) -> None:
    script = (
        "import pdlink_omlx.hook as h, omlx.server as s, sys\n"
        "print(len(s.app.added), sorted(p for p, _, _ in s.app.added), s.app.added[0][2][0].f is s.verify_api_key)\n"
        "print(type(s.__loader__).__name__, s.__spec__.loader is s.__loader__)\n"
        "h.activate(); print(sum(isinstance(f, h._Finder) for f in sys.meta_path))\n"
        "h.add_to(s); print(len(s.app.added))\n"
    )
    done = python(site, "-c", script)
    paths = ["/pdlink/v1/adopt", "/pdlink/v1/evict", "/pdlink/v1/info", "/pdlink/v1/plan"]
    assert done.stdout.splitlines() == [f"4 {paths} True", "SourceFileLoader True", "1", "4"], done.stderr


def test_hook_can_be_left_out(site: Path) -> None:
    done = python(site, "-c", "import pdlink_omlx.hook, omlx.server as s; print(s.app.added)", PDLINK_OMLX_DISABLE="1")
    assert done.stdout == "[]\n", done.stderr


def test_hook_never_breaks_the_decoder(site: Path) -> None:
    (site / "omlx" / "server.py").write_text(SERVER.replace("verify_api_key", "renamed"))
    done = python(site, "-c", "import pdlink_omlx.hook, omlx.server as s; print(len(s.app.added))")
    assert done.stdout == "0\n"
    assert "no endpoints, the decoder runs without them" in done.stderr and "no verify_api_key" in done.stderr


def test_hook_leaves_errors_alone(site: Path) -> None:
    (site / "omlx" / "server.py").write_text("raise ValueError('its own')")
    done = python(site, "-c", "import pdlink_omlx.hook, omlx.server")
    assert done.returncode == 1 and "ValueError: its own" in done.stderr


def test_hook_imports_little(site: Path) -> None:
    script = "import sys; a = set(sys.modules); import pdlink_omlx.hook; print(*(set(sys.modules) - a))"
    done = python(site, "-c", script)
    extra = set(done.stdout.split())
    assert not extra & {"asyncio", "numpy", "json", "fastapi", "omlx"}, extra


def test_pth_names_the_hook() -> None:
    assert (ROOT / "pdlink_omlx.pth").read_text() == "import pdlink_omlx.hook\n"


def test_launcher(site: Path) -> None:
    done = python(site, "-m", "pdlink_omlx", "serve", "--port", "1")
    assert done.stdout == "decoder ['omlx', 'serve', '--port', '1']\n", done.stderr
    assert done.returncode == 3


def test_launcher_refuses(site: Path) -> None:
    (site / "omlx" / "server.py").write_text(SERVER.replace("def verify_api_key(): pass", ""))
    done = python(site, "-m", "pdlink_omlx", "serve")
    assert done.returncode == 2 and done.stdout == "" and "no verify_api_key" in done.stderr


def test_check(site: Path) -> None:
    done = python(site, "-m", "pdlink_omlx", "check")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["error"] == ""
    assert "0 for /v1/completions" in found["plans"]["/v1/completions"]


def test_no_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(__main__, "APP_BUNDLES", (str(tmp_path / "none"),))
    with pytest.raises(Refusal, match="has no omlx: run this with the decoder's own Python"):
        __main__.server_module()
    monkeypatch.setattr(__main__, "APP_BUNDLES", (str(tmp_path),))
    with pytest.raises(Refusal, match="whose Python cannot be added to"):
        __main__.server_module()


def answer(run: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """What a handler answers, through a stand-in for the framework's answer class."""
    responses = types.ModuleType("fastapi.responses")

    def response(content: str, status_code: int, media_type: str) -> tuple[Any, int]:
        assert media_type == "application/json"
        return json.loads(content.encode("utf-8")), status_code  # what cannot be encoded does not leave

    responses.Response = response  # type: ignore[attr-defined]
    requests = types.ModuleType("starlette.requests")
    requests.Request = fakes.Request  # type: ignore[attr-defined]
    for name, module in (("fastapi", types.ModuleType("fastapi")), ("fastapi.responses", responses)):
        monkeypatch.setitem(sys.modules, name, module)
    for name, module in (("starlette", types.ModuleType("starlette")), ("starlette.requests", requests)):
        monkeypatch.setitem(sys.modules, name, module)
    handler = install.answering(run, lambda: None)
    assert handler.__annotations__["request"] is fakes.Request
    return asyncio.run(handler(fakes.Request()))


def test_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def good(_: Any) -> dict[str, Any]:
        return {"a": 1}

    async def refuses(_: Any) -> dict[str, Any]:
        raise Refusal("space", "no room")

    async def decoder(_: Any) -> dict[str, Any]:
        raise fakes.HTTPError(404, "no such model")

    async def breaks(_: Any) -> dict[str, Any]:
        raise KeyError("x")

    assert answer(good, monkeypatch) == ({"a": 1}, 200)
    assert answer(refuses, monkeypatch) == ({"error": {"code": "space", "message": "no room"}}, 507)
    assert answer(decoder, monkeypatch) == ({"error": {"code": "decoder", "message": "no such model"}}, 404)
    assert answer(breaks, monkeypatch) == ({"error": {"code": "failed", "message": "KeyError: 'x'"}}, 500)


def test_answers_with_halves_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """UTF-8 cannot say them; the answer leaves all the same, with its status."""
    half = "a \ud800 b"

    async def good(_: Any) -> dict[str, Any]:
        return {"refused": {"00": half}}

    async def refuses(_: Any) -> dict[str, Any]:
        raise Refusal("conflict", half)

    async def decoder(_: Any) -> dict[str, Any]:
        raise fakes.HTTPError(400, half)

    async def breaks(_: Any) -> dict[str, Any]:
        raise RuntimeError(half)

    async def no_number(_: Any) -> dict[str, Any]:
        return {"a": float("nan")}

    assert answer(good, monkeypatch) == ({"refused": {"00": half}}, 200)
    for run, code, status in ((refuses, "conflict", 409), (decoder, "decoder", 400), (breaks, "failed", 500)):
        found, got = answer(run, monkeypatch)
        assert (found["error"]["code"], got) == (code, status) and half in found["error"]["message"]
    found, got = answer(no_number, monkeypatch)
    assert (found["error"]["code"], got) == ("failed", 500)


def test_handlers_that_moved(server: fakes.Server) -> None:
    route = server.app.routes[0]

    async def other_getter(request: fakes.CompletionRequest) -> None:
        await find_engine(request.model)  # type: ignore[name-defined]  # noqa: F821

    def plain(request: fakes.CompletionRequest) -> None:
        """Not a coroutine."""

    for endpoint in (other_getter, plain, object()):
        route.endpoint = endpoint
        with pytest.raises(Refusal) as caught:
            dryrun.handler_of(server, "/v1/completions")
        assert caught.value.code == "moved"
    server.app.routes = []
    with pytest.raises(Refusal, match="0 for /v1/completions"):
        dryrun.handler_of(server, "/v1/completions")


def test_a_parameter_that_is_not_known(server: fakes.Server) -> None:
    async def more(request: fakes.CompletionRequest, tenant: str) -> None:
        await get_engine_for_model(request.model)  # type: ignore[name-defined]  # noqa: F821

    names = {**vars(fakes), "get_engine_for_model": server.get_engine_for_model}  # type: ignore[attr-defined]
    moved = types.FunctionType(more.__code__, names)
    server.app.routes[0].endpoint = moved
    moved.__annotations__ = {"request": "NoSuchType", "tenant": "str"}
    with pytest.raises(Refusal, match="types are not known here"):
        asyncio.run(dryrun.prompt_of(server, "/v1/completions", b'{"model":"tiny","prompt":"x"}', fakes.Request()))
    moved.__annotations__ = {"request": "CompletionRequest", "tenant": "str"}
    with pytest.raises(Refusal, match="it wants tenant"):
        asyncio.run(dryrun.prompt_of(server, "/v1/completions", b'{"model":"tiny","prompt":"x"}', fakes.Request()))
    assert server.loads == 0
