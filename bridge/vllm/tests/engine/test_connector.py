"""The connector's class in a real vLLM's environment, without an engine: what is refused; nothing is raised."""

from __future__ import annotations

import importlib
import logging
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from types import SimpleNamespace as N
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def config(extra: dict[str, Any] | None = None, kind: str = "qwen3", **parallel: int) -> Any:
    text = N(num_hidden_layers=3, hidden_size=64)
    return N(
        kv_transfer_config=N(kv_connector_extra_config=extra or {}, is_kv_producer=True),
        model_config=N(hf_config=N(model_type=kind), hf_text_config=text, enforce_eager=False, use_mla=False),
        parallel_config=N(**parallel),
    )


def request(**more: Any) -> Any:
    ask = {"pdlink": {"transfer": "00" * 16}}
    return N(**{"request_id": "r", "prompt_token_ids": [1, 2, 3], "kv_transfer_params": ask, **more})


def groups() -> Any:
    return N(kv_cache_groups=[N(layer_names=["x"], kv_cache_spec=N(block_size=16))])


def make(c: Any, role: str = "SCHEDULER", g: Any = None) -> Any:
    from pdlink_vllm.connector import PDLinkConnector
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    return PDLinkConnector(c, KVConnectorRole[role], g or groups())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The connector's log, whether or not vLLM keeps it from the root's handlers; then it is there twice."""
    log = logging.getLogger("vllm.pdlink")
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)


def nothing_scheduled() -> Any:
    cached = N(req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set())
    return N(scheduled_new_reqs=[], scheduled_cached_reqs=cached, num_scheduled_tokens={}, preempted_req_ids=set())


@pytest.mark.parametrize(
    ("c", "words"),
    [
        (config({"sokcet": "/x"}), "sokcet = '/x' is not known"),
        (config(decode_context_parallel_size=2), "decode_context_parallel_size = 2"),
        (config(kind="deepseek_v4"), "--enforce-eager"),
    ],
)
def test_refused(c: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, the reason in the answer of a request that asked, and nothing else."""
    k = make(c)
    assert words in k.off
    r = request()
    k.on_new_request(r)
    assert k.get_num_new_matched_tokens(r, 128) == (0, False)
    assert k.build_connector_meta(nothing_scheduled()).step.chunks == []
    blocks_free, params = k.request_finished_all_groups(r, ([1],))
    assert not blocks_free
    assert words in params["pdlink"]["declined"]
    assert k.request_finished(request(kv_transfer_params=None), [1]) == (False, None)


@pytest.mark.parametrize("version", ["0.20.0", "0.40.0", "0.25.0"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", version)
    for role in ("SCHEDULER", "WORKER"):
        k = make(config(), role)
        assert f"vLLM {version} " in k.off


def test_a_fault_of_ours_is_not_the_engines() -> None:
    k = make(config())
    assert k.off == ""
    assert k.build_connector_meta(N()).step.chunks == []  # not a scheduler's output: our code fails
    assert "AttributeError" in k.off
    assert k.build_connector_meta(nothing_scheduled()).step.chunks == []


@pytest.mark.parametrize("what", ["_maker", "hook"])
def test_a_fault_of_ours_after_the_engine_was_asked(
    what: str, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not said to be vLLM's, its traceback is in the log, and no thread of the device is left."""
    from pdlink_vllm import connector, engine

    class Device(connector.Cpu):
        """Counts."""

        closed = 0

        def close(self) -> None:
            """Count."""
            Device.closed += 1

    def bug(*_: Any) -> None:
        raise TypeError("a bug")

    k = make(config({"local_workers": 1}), "WORKER")
    layers = [N(index=0, name="x", block_size=16)]
    model = N(kind=engine.Kind.KV, layers=layers, head_first=0, head_end=1, replica=False)
    loaded = engine.Loaded(k._vllm_config, groups(), {}, {}, engine.Ranks())
    monkeypatch.setattr(connector.PDLinkConnector, "_find", lambda *_: (loaded, model))
    monkeypatch.setattr(connector, "Cpu", Device)
    monkeypatch.setattr(connector.facts, "document", lambda *_: b"{}")
    monkeypatch.setattr(connector.PDLinkConnector if what == "_maker" else connector, what, bug)
    k.register_kv_caches({})
    assert k.off == "TypeError: a bug"
    assert Device.closed >= 1
    assert {r.exc_info[0] for r in said.records if r.exc_info} == {TypeError}


def test_a_worker_without_a_model(said: pytest.LogCaptureFixture) -> None:
    k = make(config(), "WORKER")
    k.register_kv_caches({})  # no distributed environment
    assert "is not as this connector knows it (AssertionError: " in k.off
    assert {(r.levelno, r.exc_info[0]) for r in said.records if r.exc_info} == {(logging.WARNING, AssertionError)}
    k.bind_connector_metadata(pickle.loads(pickle.dumps(make(config()).build_connector_meta(nothing_scheduled()))))
    k.start_load_kv(None)
    k.wait_for_layer_load("x")
    k.save_kv_layer("x", None, None)
    k.wait_for_save()
    k.clear_connector_metadata()
    k.shutdown()


def test_names_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name: of what the class is made of the engine hears when it loads it, of all else a line in the log tells."""
    import vllm.distributed
    from pdlink_vllm.engine import TESTED
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    k = make(config(), "WORKER")
    with monkeypatch.context() as m:
        m.delattr(vllm.distributed, "get_pp_group")
        k.register_kv_caches({})
        assert "(ImportError: cannot import name 'get_pp_group'" in k.off
    c = config()
    del c.model_config.hf_config
    assert "has no attribute 'hf_config'); tested are" in make(c).off
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "vllm.platforms", ModuleType("vllm.platforms"))
        m.setitem(sys.modules, "vllm.logger", ModuleType("vllm.logger"))
        m.delitem(sys.modules, "pdlink_vllm.connector")
        importlib.import_module("pdlink_vllm.connector")
        assert "(ImportError: cannot import name 'current_platform'" in make(config()).off
    monkeypatch.delattr(base, "SupportsHMA")
    monkeypatch.delitem(sys.modules, "pdlink_vllm.connector")
    with pytest.raises(ImportError, match=rf"only {TESTED} are tested: cannot import name 'SupportsHMA'"):
        importlib.import_module("pdlink_vllm.connector")


def test_a_hit_in_the_way() -> None:
    k = make(config())
    r = request(skip_reading_prefix_cache=False)
    assert k.get_num_new_matched_tokens(r, 128) == (None, False)
    assert k.get_num_new_matched_tokens(r, 0) == (0, False)
    assert k.request_finished(r, [1])[1]["pdlink"]["transfer"] == "00" * 16
    assert k.requires_kv_delivery is False
    assert type(k).requires_piecewise_for_cudagraph({})
