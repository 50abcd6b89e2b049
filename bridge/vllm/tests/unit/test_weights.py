"""The export of projection weights: what MLX quantised comes out as MLX dequantises it, and no damage gets through."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pdlink_vllm import cli
from pdlink_vllm.weights import dequantise
from pdlink_vllm.weights.dequantise import QuantError, Scheme
from pdlink_vllm.weights.export import ExportError, Options, export
from pdlink_vllm.weights.safetensors import Array, FileError, read_header, write

MLX = Path(__file__).parent / "testdata" / "mlx.safetensors"


def arrays(path: Path) -> dict[str, Any]:
    """A file's tensors as numpy arrays; bf16 as bit patterns."""
    kinds = {"F32": "<f4", "U32": "<u4", "U8": "u1", "BF16": "<u2"}
    return {n: t.raw().view(kinds[t.dtype]).reshape(t.shape) for n, t in read_header(path).items()}


def widened(patterns: Any) -> Any:
    return (patterns.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("name", sorted({n.rpartition(".")[0] for n in read_header(MLX)}))
def test_dequantised_as_mlx_does(name: str) -> None:
    have = arrays(MLX)
    mode, group, bits = name.split("-")
    biases = have.get(f"{name}.biases")
    scales = have[f"{name}.scales"]
    if scales.dtype == np.uint16:
        scales, biases = widened(scales), widened(biases)
    got = dequantise.mlx(name, Scheme(mode, int(group), int(bits)), have[f"{name}.weight"], scales, biases)
    want = have[f"{name}.want"]
    if mode == "affine":  # MLX computes these in the type of its scales, and rounds on the way
        assert np.allclose(got, want, rtol=2**-7, atol=float(np.abs(want).max()) * 2**-8)
        return
    assert np.array_equal(got, want)
    patterns = dequantise.to_bf16(got, name, exact=True)
    assert np.array_equal(widened(patterns), want)


def test_tiles() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 0x7E, (200, 300), dtype=np.uint8)
    scales = rng.integers(120, 130, (2, 3), dtype=np.uint8)
    got = dequantise.tiled("w", codes, scales)
    assert got[150, 260] == dequantise.tiled("w", codes[150:151, 260:261], scales[1:2, 2:3])[0, 0]
    one = np.array([[0x38]], np.uint8)  # 1.0
    assert dequantise.tiled("w", one, np.array([[130]], np.uint8))[0, 0] == 8
    with pytest.raises(QuantError, match="tiles of 128"):
        dequantise.tiled("w", codes, scales[:1])


def test_rounding_is_to_even_and_only_when_allowed() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20)], np.float32)
    with pytest.raises(QuantError, match="--allow-rounding"):
        dequantise.to_bf16(values, "w", exact=True)
    assert widened(dequantise.to_bf16(values, "w", exact=False)).tolist() == [1.0, 1.0, 1 + 2**-6, -(1 + 2**-7)]
    with pytest.raises(QuantError, match="not finite"):
        dequantise.to_bf16(np.array([np.inf], np.float32), "w", exact=False)


CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "index_head_dim": 16,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1024},
    "compress_ratios": [0, 4, 128, 0],
}


def checkpoint(folder: Path, prefix: str = "model.layers.", seed: int = 0) -> dict[str, Array]:
    """A decoder's checkpoint in bf16, and its tensors by name."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}

    def put(name: str, *shape: int, kind: str = "BF16") -> None:
        size = int(np.prod(shape)) * (4 if kind == "F32" else 2)
        made[prefix + name] = Array(kind, shape, (rng.integers(0, 256, size, dtype=np.uint8) & 0x3F).astype(np.uint8))

    for i, r in enumerate((0, 4, 128)):
        put(f"{i}.attn.wkv.weight", 32, 64)
        put(f"{i}.attn.kv_norm.weight", 32)
        put(f"{i}.attn.wq_a.weight", 16, 64)
        for name, dim in (("compressor", 32), ("indexer.compressor", 16)):
            if r == 0 or (r == 128 and name != "compressor"):
                continue
            w = 2 * dim if r == 4 else dim
            put(f"{i}.attn.{name}.wkv.weight", w, 64)
            put(f"{i}.attn.{name}.wgate.weight", w, 64)
            put(f"{i}.attn.{name}.ape", r, w, kind="F32")
            put(f"{i}.attn.{name}.norm.weight", dim)
    store(folder, made, CONFIG)
    return made


def store(folder: Path, made: dict[str, Array], config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    names = sorted(made)
    write(folder / "a.safetensors", [(n, made[n]) for n in names[::2]], {})
    write(folder / "b.safetensors", [(n, made[n]) for n in names[1::2]], {})
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("prefix", ["model.layers.", "layers.", "language_model.model.layers."])
def test_export(tmp_path: Path, prefix: str) -> None:
    made = checkpoint(tmp_path / "m", prefix)
    report = export(tmp_path / "m", tmp_path / "w.safetensors", Options())
    data = (tmp_path / "w.safetensors").read_bytes()
    assert report.sha256 == hashlib.sha256(data).hexdigest()
    assert report.dequantised == ()
    have = read_header(tmp_path / "w.safetensors")
    assert len(have) == report.tensors == 3 * 2 + 4 + 4 + 4
    for new, old in (
        ("layer_0.wkv.weight", "0.attn.wkv.weight"),
        ("layer_1.comp.wgate.weight", "1.attn.compressor.wgate.weight"),
        ("layer_1.idx.ape", "1.attn.indexer.compressor.ape"),
        ("layer_2.comp.norm.weight", "2.attn.compressor.norm.weight"),
    ):
        assert have[new].raw().tobytes() == made[prefix + old].data.tobytes()
        assert (have[new].dtype, have[new].shape) == (made[prefix + old].dtype, made[prefix + old].shape)
    note = json.loads((tmp_path / "w.json").read_text())
    assert note["sha256"] == report.sha256
    assert note["config"]["compress_ratios"] == [0, 4, 128]
    again = export(tmp_path / "m", tmp_path / "again.safetensors", Options())
    assert again.sha256 == report.sha256


def test_export_of_quantised_matrices(tmp_path: Path) -> None:
    """wkv in mxfp8 as MLX leaves it, with another scheme for one layer, and DeepSeek's own form for a third."""
    made = checkpoint(tmp_path / "m")
    golden = arrays(MLX)
    config = {
        **CONFIG,
        "hidden_size": 128,
        "head_dim": 6,
        "qk_rope_head_dim": 2,
        "num_hidden_layers": 3,
        "compress_ratios": [0, 0, 0],
        "quantization": {
            "group_size": 32,
            "bits": 8,
            "mode": "mxfp8",
            "model.layers.1.attn.wkv": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
        },
    }
    made = {n: a for n, a in made.items() if n.endswith("kv_norm.weight")}
    for i, name in enumerate(("mxfp8-32-8", "nvfp4-16-4")):
        words, scales = golden[f"{name}.weight"], golden[f"{name}.scales"]
        made[f"model.layers.{i}.attn.wkv.weight"] = Array("U32", words.shape, words.reshape(-1).view(np.uint8))
        made[f"model.layers.{i}.attn.wkv.scales"] = Array("U8", scales.shape, scales.reshape(-1))
    codes = np.full((6, 128), 0x38, np.uint8)
    made["model.layers.2.attn.wkv.weight"] = Array("F8_E4M3", (6, 128), codes.reshape(-1))
    made["model.layers.2.attn.wkv.scale"] = Array("F8_E8M0", (1, 1), np.array([126], np.uint8))
    for i in range(3):
        made[f"model.layers.{i}.attn.kv_norm.weight"] = Array("BF16", (6,), np.zeros(12, np.uint8))
    store(tmp_path / "q", made, config)
    report = export(tmp_path / "q", tmp_path / "w.safetensors", Options())
    assert len(report.dequantised) == 3
    got = arrays(tmp_path / "w.safetensors")
    assert np.array_equal(widened(got["layer_0.wkv.weight"]), golden["mxfp8-32-8.want"])
    assert np.array_equal(widened(got["layer_1.wkv.weight"]), golden["nvfp4-16-4.want"])
    assert (widened(got["layer_2.wkv.weight"]) == 0.5).all()


def test_affine_needs_leave(tmp_path: Path) -> None:
    golden = arrays(MLX)
    made: dict[str, Array] = {"layers.0.attn.kv_norm.weight": Array("BF16", (6,), np.zeros(12, np.uint8))}
    for part, kind in (("weight", "U32"), ("scales", "BF16"), ("biases", "BF16")):
        a = golden[f"affine-64-8.{part}"]
        made[f"layers.0.attn.wkv.{part}"] = Array(kind, a.shape, a.reshape(-1).view(np.uint8))
    store(
        tmp_path / "q",
        made,
        {
            **CONFIG,
            "hidden_size": 128,
            "head_dim": 6,
            "qk_rope_head_dim": 2,
            "num_hidden_layers": 1,
            "compress_ratios": [0],
            "quantization": {"group_size": 64, "bits": 8},
        },
    )
    with pytest.raises(ExportError, match="--allow-rounding"):
        export(tmp_path / "q", tmp_path / "w.safetensors", Options())
    assert not (tmp_path / "w.safetensors").exists()
    report = export(tmp_path / "q", tmp_path / "w.safetensors", Options(allow_rounding=True))
    assert report.tensors == 2


def test_ape_is_widened(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "m")
    name = "model.layers.1.attn.compressor.ape"
    half = Array("BF16", made[name].shape, made[name].data[: made[name].data.size // 2])
    store(tmp_path / "m", {**made, name: half}, CONFIG)
    export(tmp_path / "m", tmp_path / "w.safetensors", Options())
    got = arrays(tmp_path / "w.safetensors")["layer_1.comp.ape"]
    assert got.dtype == np.float32
    assert np.array_equal(got, widened(half.data.view("<u2").reshape(half.shape)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compress_ratios": None}, "no compress_ratios"),
        ({"head_dim": None}, "no head_dim"),
        ({"compress_ratios": [0, 4]}, "one entry for each"),
        ({"compress_ratios": [0, 4, 2]}, "something else than 0, 4 and 128"),
        ({"rope_scaling": None, "rope_parameters": {"factor": 16}}, "without yarn"),
        ({"compress_ratios": [False, 4, 128]}, "something else than 0, 4 and 128"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648, want 1 to 4096"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"sliding_window": 2**32 + 128}, "sliding_window is 4294967424, want 1 to 16384"),
        ({"qk_rope_head_dim": 2**32 + 8}, "qk_rope_head_dim is 4294967304"),
        ({"qk_rope_head_dim": 7}, "an even number up to 16"),
        ({"qk_rope_head_dim": 18}, "an even number up to 16"),
        ({"index_head_dim": 0}, "index_head_dim is 0"),
        ({"max_position_embeddings": 2**70}, "max_position_embeddings is 1180591620717411303424"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"compress_rope_theta": float("inf")}, "compress_rope_theta is inf"),
        ({"rope_scaling": [1]}, "rope_scaling is a list"),
        ({"rope_scaling": {**CONFIG["rope_scaling"], "mscale": float("nan")}}, "rope_scaling.mscale is nan"),
        ({"rope_scaling": {**CONFIG["rope_scaling"], "more": [1]}}, "rope_scaling.more is a list"),
        ({"rope_scaling": {"type": "linear"}}, "none but yarn"),
        ({"rope_scaling": {"type": "yarn", "factor": 16}}, "rope_scaling.original_max_position_embeddings is null"),
        ({"hidden_size": 96}, "the configuration wants"),
        ({"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 0]}, "is missing"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    made = checkpoint(tmp_path / "m")
    config = {k: v for k, v in {**CONFIG, **change}.items() if v is not None}
    store(tmp_path / "m", made, config)
    with pytest.raises(ExportError, match=words):
        export(tmp_path / "m", tmp_path / "w.safetensors", Options())


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("1.attn.kv_norm.weight", Array("F32", (32,), np.zeros(128, np.uint8)), "whose norms are BF16"),
        ("1.attn.wkv.weight", Array("F32", (32, 64), np.zeros(8192, np.uint8)), "want BF16 or a quantised"),
        ("1.attn.wkv.weight", Array("U32", (32, 16), np.zeros(2048, np.uint8)), "no quantization"),
        ("1.attn.wkv.weight", Array("F8_E4M3", (32, 64), np.zeros(2048, np.uint8)), "powers of two"),
        ("1.attn.compressor.ape", Array("F16", (4, 64), np.zeros(512, np.uint8)), "want F32"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, name: str, array: Array, words: str) -> None:
    made = checkpoint(tmp_path / "m")
    made[f"model.layers.{name}"] = array
    made["model.layers.1.attn.wkv.scales"] = Array("U8", (32, 2), np.zeros(64, np.uint8))
    store(tmp_path / "m", made, CONFIG)
    with pytest.raises(ExportError, match=words):
        export(tmp_path / "m", tmp_path / "w.safetensors", Options())


def header(path: Path, entries: Any, data: int = 8) -> Path:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


@pytest.mark.parametrize(
    "entries",
    [
        b"{",
        [1],
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [0, 10**400], "data_offsets": [0, 0]}},
        b'{"a":' * 100000,
        {n: {"dtype": "U8", "shape": [5], "data_offsets": [at, at + 5]} for n, at in (("a", 0), ("b", 3))},
    ],
)
def test_files_that_are_none(tmp_path: Path, entries: Any) -> None:
    with pytest.raises(FileError):
        read_header(header(tmp_path / "x", entries))


def test_headers_that_lie_about_their_length(tmp_path: Path) -> None:
    for data in (b"", b"1234567", (1 << 60).to_bytes(8, "little") + b"{}", (3).to_bytes(8, "little") + b"{}"):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(FileError):
            read_header(tmp_path / "x")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path / "m")
    out = tmp_path / "w.safetensors"
    assert cli.main(["weights", "export", str(tmp_path / "m"), "--out", str(out)]) == 0
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert digest in capsys.readouterr().out
    assert cli.main(["weights", "export", str(tmp_path / "m"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == digest
    assert cli.main(["weights", "export", str(tmp_path / "nothing"), "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "config.json" in captured.err
    assert out.exists()
    assert cli.main(["weights", "verify", str(out)]) == 0
    data = bytearray(out.read_bytes())
    data[-1] ^= 1
    out.write_bytes(bytes(data))
    assert cli.main(["weights", "verify", str(out)]) == 1
    assert "is not the file" in capsys.readouterr().err
