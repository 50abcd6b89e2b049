"""Compute vectors.json from the specification alone (PROTOCOL.md, section 10), with primitives from elsewhere.

Usage: python3 vectors.py > vectors.json
Needs the PyPI package cryptography.
"""

import hashlib
import json
import struct
import sys
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

SECRET = bytes(range(32))
KEY_SIZES = {"aes-128-gcm": 16, "aes-256-gcm": 32}
FRAMES_PER_KEY = 1 << 14

# Frame headers as package wire encodes them, by the payload's length. They are literal because their XXH3 sums need a
# package of their own; the Go test encodes them again.
HEADERS = {
    8: (
        "50444c460101000005000000060000000700000000000000080000000200000000000000000000000000000000000000"
        "30cebe682e5e5fe190f0fbba548b726c0000000007000000070000000000000000000000000000800000000000000000"
        "0100000001000000070000000000000001000000000000800000000000000000"
    ),
    65541: (
        "50444c460101000005000000060000000700000000000000050001000100000000000000000000000000000000000000"
        "3d12a742d1e8e6d85db1f2106b53faaf0000000005000100070000000000000000000000000000800000000000000000"
    ),
    196608: (
        "50444c460101000005000000060000000700000000000000000003000300000000000000000000000000000000000000"
        "c6e60c7938dbfceb60a44be22eb9beed00000000feff0200070000000000000000000000000000800000000000000000"
        "010000000100000007000000000000000100000000000080000000000000000002000000010000000700000000000000"
        "02000000000000800000000000000000"
    ),
}

# Suite, lane, direction, frame number, log2 of the record, payload.
FRAMES = [
    ("aes-128-gcm", 0, 0, 0, 17, 8),
    ("aes-128-gcm", 0, 0, 1, 16, 65541),
    ("aes-128-gcm", 0, 0, FRAMES_PER_KEY - 1, 17, 8),
    ("aes-128-gcm", 0, 0, FRAMES_PER_KEY, 16, 196608),
    ("aes-128-gcm", 0, 1, 0, 17, 8),
    ("aes-128-gcm", 63, 0, 0, 18, 196608),
    ("aes-256-gcm", 0, 0, 0, 17, 8),
    ("aes-256-gcm", 1, 1, 2 * FRAMES_PER_KEY + 1, 17, 196608),
]


def expand(secret: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand with SHA-256."""
    return HKDFExpand(hashes.SHA256(), length, info).derive(secret)


def lane_info(use: str, suite: str, lane: int, direction: int) -> bytes:
    """What a secret of one direction of one lane depends on."""
    return f"pdlink/1 {use}".encode() + b"\0" + suite.encode() + b"\0" + struct.pack("<HB", lane, direction)


def keys(suite: str, lane: int, direction: int, frame: int) -> tuple[bytes, bytes, bytes]:
    """Secret, key and iv for a frame."""
    secret = expand(SECRET, lane_info("traffic", suite, lane, direction), 32)
    for _ in range(frame // FRAMES_PER_KEY):
        secret = expand(secret, b"pdlink/1 next", 32)
    return secret, expand(secret, b"pdlink/1 key", KEY_SIZES[suite]), expand(secret, b"pdlink/1 iv", 12)


def seal(key: bytes, iv: bytes, frame: int, log: int, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """Head and body of a sealed frame."""
    cipher = AESGCM(key)
    prelude = b"PDLS" + struct.pack("<BBHQ", 1, log, 0, frame)

    def record(index: int, plain: bytes) -> bytes:
        counter = bytes(4) + struct.pack("<Q", frame << 16 | index)
        nonce = bytes(a ^ b for a, b in zip(iv, counter, strict=True))
        return cipher.encrypt(nonce, plain, prelude)

    head = prelude + record(0, header[:64]) + record(1, header[64:])
    body = b""
    for i in range(0, len(payload), 1 << log):
        sealed = record(2 + (i >> log), payload[i : i + (1 << log)])
        body += sealed[:-16]
        head += sealed[-16:]
    return head, body


def frame_vector(suite: str, lane: int, direction: int, frame: int, log: int, size: int) -> dict[str, Any]:
    """One sealed frame; the body is given by its start and its hash."""
    secret, key, iv = keys(suite, lane, direction, frame)
    payload = bytes((i + 7) * 7 % 251 for i in range(size))
    head, body = seal(key, iv, frame, log, bytes.fromhex(HEADERS[size]), payload)
    return {
        "suite": suite,
        "lane": lane,
        "direction": direction,
        "frame": frame,
        "record": 1 << log,
        "secret": secret.hex(),
        "iv": iv.hex(),
        "header": HEADERS[size],
        "payload": size,
        "head": head.hex(),
        "body_start": body[:32].hex(),
        "body_sha256": hashlib.sha256(body).hexdigest(),
    }


def main() -> None:
    """Write all vectors."""
    proofs = [
        {
            "suite": suite,
            "lane": lane,
            "direction": direction,
            "proof": expand(SECRET, lane_info("proof", suite, lane, direction), 32).hex(),
        }
        for suite in (*KEY_SIZES, "clear")
        for lane in (0, 63)
        for direction in (0, 1)
    ]
    json.dump({"proofs": proofs, "frames": [frame_vector(*f) for f in FRAMES]}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
