"""Which rows a step computes, from objects of the engine's shapes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace as N
from typing import Any

import pytest
from pdlink_vllm.scheduler import Ask, Chunk, Options, ParamsError, Step, Tracker, digest

TRANSFER = "00112233445566778899aabbccddeeff"


def request(rid: str = "r", tokens: int = 1000, ask: Any = None, **more: Any) -> Any:
    ask = {"pdlink": {"transfer": TRANSFER}} if ask is None else ask
    return N(
        request_id=rid,
        prompt_token_ids=list(range(tokens)),
        kv_transfer_params=ask,
        skip_reading_prefix_cache=False,
        **more,
    )


def new(rid: str, start: int, *blocks: list[int]) -> Any:
    return N(req_id=rid, num_computed_tokens=start, block_ids=blocks)


def output(
    scheduled: dict[str, int],
    news: list[Any] | None = None,
    cached: list[tuple[str, int, Any]] | None = None,
    resumed: tuple[str, ...] = (),
) -> Any:
    c = cached or []
    return N(
        scheduled_new_reqs=news or [],
        scheduled_cached_reqs=N(
            req_ids=[r for r, _, _ in c],
            num_computed_tokens=[s for _, s, _ in c],
            new_block_ids=[b for _, _, b in c],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=scheduled,
    )


def tracker(gathers: bool = False, sizes: tuple[int, ...] = (128,)) -> Tracker:
    return Tracker(Options(sizes, gathers))


def spans(step: Step) -> list[tuple[int, int]]:
    return [(c.first, c.tokens) for c in step.chunks]


def test_chunks_of_a_prompt() -> None:
    t = tracker()
    r = request()
    t.add(r)
    assert r.skip_reading_prefix_cache
    assert t.matched(r, 0)
    s = t.step(output({"r": 512}, [new("r", 0, [7, 3, 9, 1])]))
    (c,) = s.chunks
    assert (c.first, c.tokens, c.prompt_tokens, c.begin, c.last) == (0, 512, 1000, 0, False)
    assert c.places == (((7, 3, 9, 1), 0),)
    assert c.transfer.hex() == TRANSFER
    s = t.step(output({"r": 300}, cached=[("r", 512, ([20, 21, 22],))]))
    assert s.chunks[0].places == (((20, 21, 22), 0),)
    assert spans(s) == [(512, 300)]
    s = t.step(output({"r": 188}, cached=[("r", 812, ([30],))]))
    assert s.chunks[0].places == (((22, 30), 812 - 768),)
    assert s.chunks[0].last
    for i in range(3):  # decoding shows no row of the prompt
        assert t.step(output({"r": 1}, cached=[("r", 1000 + i, None)])).chunks == []
    assert t.finished(r) == {
        "pdlink": {"transfer": TRANSFER, "rows": 1000, "prompt": 1000, "hit": 0, "steps": 3, "resumed": 0}
    }
    assert t.step(output({})).gone == []


def test_the_last_chunk_may_bring_more_than_the_prompt() -> None:
    t = tracker()
    t.add(request(tokens=100))
    assert spans(t.step(output({"r": 128}, [new("r", 0, [1])]))) == [(0, 100)]


def test_requests_of_others_are_not_seen() -> None:
    t = tracker()
    for params in (None, {}, {"do_remote_decode": True}):
        r = request(ask=params if params is not None else {}, rid="x")
        r.kv_transfer_params = params
        t.add(r)
        assert not r.skip_reading_prefix_cache
        assert t.matched(r, 512)
        assert t.step(output({"x": 10}, [new("x", 0, [1])])).chunks == []
        assert t.finished(r) is None


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"pdlink": 3}, "wants transfer"),
        ({"pdlink": {}}, "32 hex digits"),
        ({"pdlink": {"transfer": "zz"}}, "32 hex digits"),
        ({"pdlink": {"transfer": TRANSFER + "00"}}, "32 hex digits"),
        ({"pdlink": {"transfer": TRANSFER, "tranfser": 1}}, "wants transfer"),
        ({"pdlink": {"transfer": TRANSFER, "ids_sha256": "00"}}, "64 hex digits"),
        ({"pdlink": {"transfer": TRANSFER, "ids_sha256": "00" * 32}}, "not those of the plan"),
    ],
)
def test_what_cannot_be_is_declined(ask: Any, words: str) -> None:
    t = tracker()
    r = request(ask=ask)
    t.add(r)
    t.add(r)
    assert t.matched(r, 256)
    assert not r.skip_reading_prefix_cache
    assert t.step(output({"r": 10}, [new("r", 0, [1])])).chunks == []
    answer = t.finished(r)
    assert answer is not None
    assert words in answer["pdlink"]["declined"]
    assert t.finished(r) is None


def test_ids_are_compared() -> None:
    t = tracker()
    t.add(request(tokens=300, ask={"pdlink": {"transfer": TRANSFER, "ids_sha256": digest(range(300)).hex()}}))
    assert spans(t.step(output({"r": 300}, [new("r", 0, [1, 2, 3])]))) == [(0, 300)]


def test_params_are_no_surprise() -> None:
    assert Ask.of(None) is None
    assert Ask.of([1]) is None
    with pytest.raises(ParamsError):
        Ask.of({"pdlink": {"transfer": None}})


def test_one_transfer_has_one_request() -> None:
    t = tracker()
    a, b = request("a"), request("b")
    t.add(a)
    t.add(b)
    t.step(output({"a": 10}, [new("a", 0, [1])]))
    answer = t.finished(b)
    assert answer is not None
    assert "another request" in answer["pdlink"]["declined"]


def test_prompts_without_ids() -> None:
    t = tracker()
    r = request()
    r.prompt_token_ids = None
    t.add(r)
    answer = t.finished(r)
    assert answer is not None
    assert "no token ids" in answer["pdlink"]["declined"]


def test_old_engines_are_asked_again_about_a_hit() -> None:
    """Before 0.28 nobody is told of a request until its hit is known: it is sent back once, and then has none."""
    t = tracker()
    r = request()
    assert not t.matched(r, 256)
    assert r.skip_reading_prefix_cache
    assert t.matched(r, 0)
    assert spans(t.step(output({"r": 1000}, [new("r", 0, list(range(8)))]))) == [(0, 1000)]


def test_a_hit_that_cannot_be_helped() -> None:
    """An engine that uses its cache whatever it is told: the prompt begins where its rows do."""
    t = tracker()
    r = request()
    assert not t.matched(r, 256)
    assert t.matched(r, 256)
    (c,) = t.step(output({"r": 744}, [new("r", 256, list(range(8)))])).chunks
    assert (c.begin, c.first, c.tokens, c.last) == (256, 256, 744, True)
    answer = t.finished(r)
    assert answer is not None
    assert answer["pdlink"]["hit"] == 256


def test_a_hit_is_read_from_the_cache_where_that_can_be() -> None:
    t = tracker(gathers=True)
    r = request()
    t.add(r)
    assert not r.skip_reading_prefix_cache
    assert t.matched(r, 256)
    (c,) = t.step(output({"r": 512}, [new("r", 256, list(range(8)))])).chunks
    assert (c.begin, c.first, c.tokens) == (0, 0, 768)
    assert c.places == ((tuple(range(6)), 0),)


@pytest.mark.parametrize("form", ["cached", "new"])
def test_preempted_in_the_middle(form: str) -> None:
    """Rows computed twice are sent once, whichever way the engine sends the request again."""
    t = tracker()
    r = request()
    t.add(r)
    assert spans(t.step(output({"r": 512}, [new("r", 0, [1, 2, 3, 4])]))) == [(0, 512)]
    again = (
        output({"r": 300}, [new("r", 0, [9, 8, 7])])
        if form == "new"
        else output({"r": 300}, cached=[("r", 0, ([9, 8, 7],))], resumed=("r",))
    )
    assert t.step(again).chunks == []
    s = t.step(output({"r": 500}, cached=[("r", 300, ([6, 5, 4, 3],))]))
    assert spans(s) == [(512, 288)]
    assert s.chunks[0].places == (((5, 4, 3), 0),)
    s = t.step(output({"r": 200}, cached=[("r", 800, ([2],))]))
    assert spans(s) == [(800, 200)]
    answer = t.finished(r)
    assert answer is not None
    assert answer["pdlink"]["resumed"] == 1


def test_preempted_and_then_a_hit_beyond_what_was_sent() -> None:
    """Rows between are gone: the transfer ends where they begin."""
    t = tracker()
    t.add(request())
    t.step(output({"r": 128}, [new("r", 0, [1])]))
    (c,) = t.step(output({"r": 500}, cached=[("r", 256, ([1, 2, 3, 4, 5, 6],))], resumed=("r",))).chunks
    assert c.sealed
    assert c.last
    assert (c.first, c.tokens) == (128, 0)
    assert t.step(output({"r": 200}, cached=[("r", 756, ([7],))])).chunks == []


def test_a_request_that_ends_early_is_told_to_the_workers() -> None:
    t = tracker()
    r = request()
    t.add(r)
    t.step(output({"r": 512}, [new("r", 0, [1, 2, 3, 4])]))
    t.finished(r)
    assert t.step(output({})).gone == ["r"]
    assert t.step(output({})).gone == []


def test_groups_have_their_own_blocks() -> None:
    t = tracker(sizes=(64, 256))
    t.add(request(tokens=600))
    t.step(output({"r": 300}, [new("r", 0, [1, 2, 3, 4, 5], [9, 8])]))
    (c,) = t.step(output({"r": 300}, cached=[("r", 300, ([6, 7, 8, 9, 10], [7]))])).chunks
    assert c.places == (((5, 6, 7, 8, 9, 10), 44), ((8, 7), 44))


def test_steps_travel() -> None:
    step = Step([Chunk("r", bytes(16), 10, 0, 0, 10, (((1,), 0),))], ["gone"])
    assert pickle.loads(pickle.dumps(step)) == step
