"""Where an export writes: only an earlier export is replaced; files that are none are told of, without a traceback."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pdlink_vllm import cli
from pdlink_vllm.weights.export import ExportError, Options, export, wanted
from pdlink_vllm.weights.files import FileError, Staging
from pdlink_vllm.weights.safetensors import Array, read_header, write

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "index_head_dim": 16,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "compress_rope_theta": 16e4,
    "compress_ratios": [0, 4],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of zeros."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    arrays = []
    for name, origin, shape in wanted(CONFIG):
        dtype, size = ("F32", 4) if name.endswith("ape") else ("BF16", 2)
        arrays.append((f"layers.{origin}", Array(dtype, shape, np.zeros(size * int(np.prod(shape)), np.uint8))))
    write(folder / "model.safetensors", arrays, {})
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that a folder holds: type, inode and bytes by name."""
    found = {}
    for p in sorted(folder.rglob("*")):
        s = p.lstat()
        found[str(p)] = (s.st_mode, s.st_ino, p.read_bytes() if p.is_file() else b"")
    return found


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's whole path has no more than 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text("precious")
    path.symlink_to("elsewhere")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def text(path: Path) -> None:
    path.write_text("precious")


def tensors(path: Path) -> None:
    write(path, [("a", Array("U8", (4,), np.zeros(4, np.uint8)))], {"format": "pt"})


def other_note(path: Path) -> None:
    path.write_text(json.dumps({"weights": "v.safetensors", "sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("w.safetensors", fifo, "no regular file"),
        ("w.safetensors", sock, "no regular file"),
        ("w.safetensors", Path.mkdir, "no regular file"),
        ("w.safetensors", link, "symbolic link"),
        ("w.safetensors", dangling, "symbolic link"),
        ("w.safetensors", text, "is not of an export"),
        ("w.safetensors", tensors, "is not of an export"),
        ("w.json", fifo, "no regular file"),
        ("w.json", sock, "no regular file"),
        ("w.json", Path.mkdir, "no regular file"),
        ("w.json", link, "symbolic link"),
        ("w.json", text, "no note of an export"),
        ("w.json", lambda p: p.write_text("[" * 100000), "no note of an export"),
        ("w.json", lambda p: p.write_text("[]"), "no note of an export"),
        ("w.json", lambda p: p.write_text('{"weights": "w.safetensors", "sha256": 3}'), "no note of an export"),
        ("w.json", other_note, "the note of v.safetensors"),
    ],
)
def test_what_is_there_stays(model: Path, place: Path, name: str, make: Callable[[Path], Any], words: str) -> None:
    make(place / name)
    before = tree(place)
    with pytest.raises(ExportError, match=words):
        export(model, place / "w.safetensors", Options())
    assert tree(place) == before


def test_places_that_are_refused(model: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "deep").mkdir()
    (tmp_path / "alias").symlink_to(model, target_is_directory=True)
    (tmp_path / "low").symlink_to(model / "deep", target_is_directory=True)
    before = tree(tmp_path)
    for out, words in (
        (place / "w.json", "its own note"),
        (place / "w.JSON", "its own note"),
        (model / "model.safetensors", "checkpoint's directory"),
        (model / "config.safetensors", "checkpoint's directory"),
        (model / "deep" / "w.safetensors", "checkpoint's directory"),
        (tmp_path / "alias" / "w.safetensors", "checkpoint's directory"),
        (tmp_path / "low" / "w.safetensors", "checkpoint's directory"),
        (place / ".." / "model" / "w.safetensors", "checkpoint's directory"),
        (place / "none" / "w.safetensors", "is no directory"),
        (Path("/"), "names no file"),
        (Path(".."), "names no file"),
    ):
        with pytest.raises(ExportError, match=words):
            export(model, out, Options())
    monkeypatch.chdir(model)
    assert cli.main(["weights", "export", "."]) == 1
    assert tree(tmp_path) == before


def test_an_earlier_export_is_replaced(model: Path, place: Path) -> None:
    out, note = place / "w.safetensors", place / "w.json"
    first = export(model, out, Options())
    assert sorted(p.name for p in place.iterdir()) == ["w.json", "w.safetensors"]
    mode = (place / "w.json").stat().st_mode
    text(place / "plain")
    assert (out.stat().st_mode, mode) == ((place / "plain").stat().st_mode,) * 2  # the user's mask, as for any file
    os.truncate(out, out.stat().st_size - 1)
    assert export(model, out, Options()).sha256 == first.sha256
    out.unlink()
    assert export(model, out, Options()).sha256 == first.sha256
    note.unlink()
    assert export(model, out, Options()).sha256 == first.sha256
    assert json.loads(note.read_text())["sha256"] == first.sha256


@pytest.mark.parametrize("make", [text, tensors, Path.touch])
def test_a_note_does_not_give_its_weights_name_away(model: Path, place: Path, make: Callable[[Path], Any]) -> None:
    """Somebody put another file in the place of an export, whose note is still there."""
    export(model, place / "w.safetensors", Options())
    (place / "w.safetensors").unlink()
    make(place / "w.safetensors")
    before = tree(place)
    with pytest.raises(ExportError, match="is not of an export: move it away"):
        export(model, place / "w.safetensors", Options())
    assert tree(place) == before


def test_a_name_that_is_taken_meanwhile(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Staging.add

    def slow(self: Staging, path: Path, chunks: Any) -> None:
        add(self, path, chunks)
        if path.suffix == ".json":
            text(place / "w.safetensors")

    monkeypatch.setattr(Staging, "add", slow)
    with pytest.raises(ExportError, match="is not of an export"):
        export(model, place / "w.safetensors", Options())
    assert [(p.name, p.read_text()) for p in place.iterdir()] == [("w.safetensors", "precious")]


@pytest.mark.parametrize("fails", [1, 2])
def test_a_full_disk_changes_nothing(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """Neither a write of the weights nor one of the note that fails leaves anything, or takes the export before."""
    out = place / "w.safetensors"
    export(model, out, Options())
    before, left = tree(place), [fails]
    sync = os.fsync

    def full(fd: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match=r"w\.\w+ cannot be written: No space left on device"):
        export(model, out, Options())
    assert tree(place) == before


def test_the_note_comes_last_and_both_are_synced_before(
    model: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        done.append("fsync")
        sync(fd)

    def replaced(self: Path, to: Path) -> Path:
        done.append(Path(to).name)
        return replace(self, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    export(model, place / "w.safetensors", Options())
    assert done == ["fsync", "fsync", "w.safetensors", "w.json", "fsync"]


@pytest.mark.parametrize(
    "config",
    [
        b"[" * 100000,
        b'{"rope_scaling":' * 100000,
        b"[]",
        b'{"hidden_size":' + b"1" * 5000 + b"}",
        b"\xff\xfe",
        json.dumps({**CONFIG, "compress_ratios": {"0": 0}}).encode(),
        json.dumps({**CONFIG, "rope_theta": 10**400}).encode(),
        json.dumps({**CONFIG, "rope_scaling": "yarn"}).encode(),
    ],
)
def test_configurations_are_told(model: Path, place: Path, capsys: pytest.CaptureFixture[str], config: bytes) -> None:
    (model / "config.json").write_bytes(config)
    assert cli.main(["weights", "export", str(model), "--out", str(place / "w.safetensors")]) == 1
    assert "config.json" in capsys.readouterr().err
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ([1], "no quantization"),
        ("mxfp8", "no quantization"),
        ({"group_size": 32, "bits": 8, "mode": [1]}, "no quantization"),
        ({"group_size": 32, "bits": 10**300}, "with 1000"),
        ({"group_size": 0, "bits": 8}, "groups of 0"),
        ({"group_size": 10**300, "bits": 8}, "scales does not fit"),
        ({"group_size": 32, "bits": 3}, "wants"),
        ({"group_size": 32, "bits": 4}, "wants"),
    ],
)
def test_quantizations_are_told(model: Path, place: Path, quantization: Any, words: str) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "quantization": quantization}))
    have = {n: Array(t.dtype, t.shape, t.raw()) for n, t in read_header(model / "model.safetensors").items()}
    have["layers.0.attn.wkv.weight"] = Array("U32", (32, 16), np.zeros(2048, np.uint8))
    have["layers.0.attn.wkv.scales"] = Array("U8", (32, 2), np.zeros(64, np.uint8))
    write(model / "model.safetensors", list(have.items()), {})
    with pytest.raises(ExportError, match=words):
        export(model, place / "w.safetensors", Options())


@pytest.mark.parametrize("make", [fifo, sock, Path.mkdir])
def test_checkpoints_of_other_things(model: Path, place: Path, make: Callable[[Path], Any]) -> None:
    """A pipe among the shards or in the place of the configuration is refused; nobody waits for its writer."""
    make(model / "extra.safetensors")
    with pytest.raises(ExportError, match=r"extra\.safetensors"):
        export(model, place / "w.safetensors", Options())
    (model / "config.json").unlink()
    make(model / "config.json")
    with pytest.raises(ExportError, match=r"config\.json"):
        export(model, place / "w.safetensors", Options())


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("[]", "no note of an export"),
        ("{", "w.json"),
        ("[" * 100000, "nested too deeply"),
        ('{"weights": "w.safetensors", "sha256": null}', "no note of an export"),
        ('{"weights": "w.safetensors", "sha256": "%s"}' % ("0" * 64), "is not the file that was exported"),
        (None, "copy it along"),
    ],
)
def test_verify_tells(place: Path, capsys: pytest.CaptureFixture[str], note: str | None, words: str) -> None:
    tensors(place / "w.safetensors")
    if note is not None:
        (place / "w.json").write_text(note)
    assert cli.main(["weights", "verify", str(place / "w.safetensors")]) == 1
    assert words in capsys.readouterr().err


def test_verify_takes_files_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fifo(place / "w.safetensors")
    (place / "v.json").write_text("{}")
    for path, words in (
        (place / "w.safetensors", "no regular file"),
        (place, "no regular file"),
        (Path("."), "no regular file"),
        (place / "v.json", "is a note"),
        (place / "none", "No such file"),
    ):
        assert cli.main(["weights", "verify", str(path)]) == 1
        assert words in capsys.readouterr().err


def test_an_interrupt_leaves_nothing(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert cli.main(["weights", "export", str(model), "--out", str(place / "w.safetensors")]) == 130
    assert not list(place.iterdir())


def test_staging_removes_what_is_not_committed(place: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"), Staging() as s:
        s.add(place / "a", [b"a"])
        (place / "b").mkdir()
        s.add(place / "b", [b"b"])
        s.commit()  # a directory is not replaced by a file
    assert sorted(p.name for p in place.iterdir()) == ["a", "b"]
