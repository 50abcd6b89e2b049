"""Independent writer of block files for the tests, standard library only.

Written from the description of the format, not from the Go code next to it; the
Go tests run it and demand the same bytes. It builds the complete header and body
of each block as Python objects, the plain way.

usage: write_blocks.py CASE OUT FORMAT STATE CREATED_AT [OPTIONS_JSON]
CASE has case.json and state.safetensors (dsv4) or capture.safetensors (kv).
STATE is the logical element count of a pool (3 or 5; 0 for kv).
OPTIONS_JSON may hold layout, subtypes, class_names, zero_dim, no_block_size,
no_signature, model and extra.
"""

import hashlib
import json
import pathlib
import struct
import sys

NONE = object()
WIDTH = {"BF16": 2, "F32": 4, "I64": 8}


class Array:
    def __init__(self, dtype: str, shape: list[int], data: bytes) -> None:
        n = WIDTH[dtype]
        for d in shape:
            n *= d
        assert n == len(data), (dtype, shape, len(data))
        self.dtype, self.shape, self.data = dtype, shape, data


class Empty:
    """An array with a dimension of zero."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape


class Tensors:
    def __init__(self, path: pathlib.Path) -> None:
        raw = path.read_bytes()
        (n,) = struct.unpack_from("<Q", raw)
        self.head = json.loads(raw[8 : 8 + n])
        self.body = raw[8 + n :]

    def get(self, name: str) -> Array:
        h = self.head[name]
        a, b = h["data_offsets"]
        return Array(h["dtype"], h["shape"], self.body[a:b])


def rows(a: Array, start: int, end: int) -> Array:
    """Rows start..end of [1, rows, width]."""
    step = a.shape[2] * WIDTH[a.dtype]
    assert end <= a.shape[1]
    return Array(a.dtype, [1, end - start, a.shape[2]], a.data[start * step : end * step])


def heads_first(a: Array, start: int, end: int) -> Array:
    """Tokens start..end of [tokens, heads, width] as [1, heads, tokens, width]."""
    _, heads, width = a.shape
    step = width * WIDTH[a.dtype]
    out = b"".join(
        a.data[(t * heads + h) * step : (t * heads + h + 1) * step] for h in range(heads) for t in range(start, end)
    )
    return Array(a.dtype, [1, heads, end - start, width], out)


class Writer:
    def __init__(self, case: dict, fmt: str, state: int, created: str, opt: dict) -> None:
        self.case, self.fmt, self.state, self.created, self.opt = case, fmt, state, created, opt
        self.bs = case["block_size"]
        self.model = opt.get("model", case["model"])
        self.layout = opt.get("layout", {"3": None, "4": "embedded", "5": "split_recurrent_v1"}[fmt])
        self.delta = fmt in ("4", "5")

    def chain(self) -> list[bytes]:
        out, parent = [], b"omlx-root"
        ids = self.case["tokens"]
        extra = tuple(self.opt.get("extra", ()))
        for k in range(len(self.case["blocks"])):
            text = str(tuple(ids[k * self.bs : (k + 1) * self.bs])) + (str(extra) if extra else "")
            parent = hashlib.sha256(self.model.encode() + parent + text.encode()).digest()
            out.append(parent)
        return out

    def pool(self, src: Tensors, layer: int, ratio: int, k: int, pre: str) -> tuple[str, list]:
        end = (k + 1) * self.bs
        start = (end - 1) // self.bs * self.bs // ratio if self.delta else 0
        elements: list = [NONE, NONE, rows(src.get(f"layer_{layer}.{pre}pooled"), start, end // ratio)]
        if self.state == 5:
            for part in ("prev_kv", "prev_gate"):
                elements.append(src.get(f"layer_{layer}.{pre}{part}@{end}") if ratio == 4 else NONE)
        if self.delta:
            elements.append(Array("I64", [2], struct.pack("<qq", start, end // ratio)))
        return ("PoolingCacheDelta" if self.delta else "PoolingCache"), elements

    def dsv4(self, src: Tensors, k: int) -> tuple[list, list, dict, list]:
        cfg, end = self.case["config"], (k + 1) * self.bs
        win = cfg["sliding_window"]
        types, metas, subtypes, layers = [], [], {}, []
        rot = ["0", str(win), str(end), str(win)]
        for i, ratio in enumerate(cfg["compress_ratios"]):
            window = ("", [src.get(f"layer_{i}.win@{end}"), Empty([1, 1, win, 0])])
            if ratio == 0:
                types.append("RotatingKVCache")
                metas.append(rot)
                layers.append(window)
                continue
            members = [window, self.pool(src, i, ratio, k, "")]
            if ratio == 4:
                members.append(self.pool(src, i, ratio, k, "idx_"))
            types.append("CacheList")
            n = len(members) - 1
            metas.append([["RotatingKVCache"] + ["PoolingCache"] * n, [rot] + [ratio] * n])
            subtypes[str(i)] = ["RotatingKVCache"] + [f"PoolingCache:{self.state}"] * n
            layers.append(members)
        return types, metas, subtypes, layers

    def kv(self, src: Tensors, k: int) -> tuple[list, list, dict, list]:
        n, a, b = self.case["layers"], k * self.bs, (k + 1) * self.bs
        layers = [("", [heads_first(src.get(f"layer_{i}.{x}"), a, b) for x in "kv"]) for i in range(n)]
        return ["KVCache"] * n, [[] for _ in range(n)], {}, layers

    def block(self, src: Tensors, k: int, digest: bytes) -> bytes:
        types, metas, subtypes, layers = (self.kv if self.case["kind"] == "kv" else self.dsv4)(src, k)
        header, body, keys = {}, bytearray(), {}

        def put(name: str, a: Array) -> None:
            header[name] = {"dtype": a.dtype, "shape": a.shape, "data_offsets": [len(body), len(body) + len(a.data)]}
            body.extend(a.data)

        def state(prefix: str, cls: str, elements: list) -> None:
            if cls and self.opt.get("class_names", self.delta):
                keys[f"{prefix}_state_class_name"] = cls
            keys[f"{prefix}_state_count"] = str(len(elements))
            for e, x in enumerate(elements):
                name = f"{prefix}_state_{e}"
                if x is NONE:
                    put(name, Array("F32", [1], bytes(4)))
                    keys[name + "_none"] = "1"
                elif isinstance(x, Empty):
                    dtype = self.opt.get("zero_dim", "F32")
                    put(name, Array(dtype, [1], bytes(WIDTH[dtype])))
                    keys[name + "_zero_dim"] = ",".join(map(str, x.shape))
                else:
                    put(name, x)

        for i, layer in enumerate(layers):
            if isinstance(layer, tuple):
                state(f"layer_{i}", *layer)
                continue
            keys[f"layer_{i}_sub_count"] = str(len(layer))
            for j, member in enumerate(layer):
                state(f"layer_{i}_sub_{j}", *member)
        header["__metadata__"] = self.metadata(digest, types, metas, subtypes) | keys
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + bytes(body)

    def metadata(self, digest: bytes, types: list, metas: list, subtypes: dict) -> dict:
        sig = {"model_name": self.model, "num_layers": len(types), "block_size": self.bs, "layer_cache_types": types}
        if subtypes and self.opt.get("subtypes", self.delta or self.state == 5):
            sig["cachelist_subtypes"] = subtypes
        if self.layout:
            sig["payload_layout"] = self.layout
        md = {
            "omlx_cache_format_version": self.fmt,
            "block_hash": digest.hex(),
            "token_count": str(self.bs),
            "num_layers": str(len(types)),
            "model_name": self.model,
        }
        if not self.opt.get("no_block_size"):
            md["block_size"] = str(self.bs)
        if not self.opt.get("no_signature"):
            md["cache_signature"] = json.dumps(sig, sort_keys=True, separators=(",", ":"))
        if self.layout:
            md["payload_layout"] = self.layout
        md["created_at"] = self.created
        md["layer_cache_types"] = json.dumps(types)
        md["layer_meta_states"] = json.dumps(metas)
        return md


def main() -> None:
    case_dir, out, fmt, state, created = sys.argv[1:6]
    opt = json.loads(sys.argv[6]) if len(sys.argv) > 6 else {}
    case = json.loads((pathlib.Path(case_dir) / "case.json").read_text())
    src = Tensors(pathlib.Path(case_dir) / ("capture.safetensors" if case["kind"] == "kv" else "state.safetensors"))
    w = Writer(case, fmt, int(state), created, opt)
    for k, digest in enumerate(w.chain()):
        path = pathlib.Path(out) / digest.hex()[0] / (digest.hex() + ".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(w.block(src, k, digest))


if __name__ == "__main__":
    main()
