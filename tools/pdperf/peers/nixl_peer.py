"""One end of a NIXL transfer over UCX's TCP, in plain memory.

nixl_peer.py recv HOST PORT BLOCK COUNT
nixl_peer.py send HOST PORT BLOCK COUNT DEPTH SECONDS

The receiver owns COUNT blocks, the sender writes its own COUNT blocks there, each in turn, DEPTH at a time. The sender
prints one line of JSON: bytes, seconds, CPU seconds of both processes in that time (getrusage), block times in
milliseconds, and whether the last bytes of every block arrived.
"""

import json
import os
import resource
import socket
import struct
import sys
import time
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

PATTERN = 7
PAUSE = 0.0002  # between looks at transfers that are under way


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(sock: socket.socket, data: bytes) -> None:
    sock.sendall(struct.pack("<I", len(data)) + data)


def hear(sock: socket.socket) -> bytes:
    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = sock.recv(n - len(data))
            if not more:
                raise EOFError("the other end hung up")
            data += more
        return data

    return exactly(struct.unpack("<I", exactly(4))[0])


def agent(name: str, memory: np.ndarray) -> Any:
    a = nixl_agent(name, nixl_agent_config(True, False, 0, backends=[]))
    a.create_backend("UCX", {"num_workers": "1"})
    a.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return a


def receive(host: str, port: int, block: int, count: int) -> None:
    memory = np.ones(block * count, dtype=np.uint8)
    a = agent("recv", memory)
    with socket.create_server((host, port)) as server:
        print("listening", flush=True)
        sock, _ = server.accept()
    say(sock, a.get_agent_metadata())
    say(sock, json.dumps(memory.ctypes.data).encode())
    a.add_remote_agent(hear(sock))
    say(sock, b"ready")
    hear(sock)
    before = cpu()
    say(sock, b"begin")
    hear(sock)
    spent = cpu() - before
    arrived = bool((memory.reshape(count, block)[:, -64:] == PATTERN).all())
    say(sock, json.dumps({"cpu": spent, "arrived": arrived}).encode())


def send(host: str, port: int, block: int, count: int, depth: int, seconds: float) -> None:
    memory = np.full(block * count, PATTERN, dtype=np.uint8)
    a = agent("send", memory)
    sock = socket.create_connection((host, port))
    metadata = hear(sock)
    base = json.loads(hear(sock))
    peer = a.add_remote_agent(metadata)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    say(sock, a.get_agent_metadata())
    hear(sock)
    handles = []
    for i in range(count):
        here = a.get_xfer_descs([(memory.ctypes.data + i * block, block, 0)], "DRAM")
        there = a.get_xfer_descs([(base + i * block, block, 0)], "DRAM")
        handles.append(a.initialize_xfer("WRITE", here, there, peer))

    def start(i: int) -> float:
        if a.transfer(handles[i]) == "ERR":
            raise RuntimeError("a transfer failed")
        return time.perf_counter()

    for i in range(count):  # warm up: connections, and every page
        start(i)
        while a.check_xfer_state(handles[i]) != "DONE":
            time.sleep(PAUSE)
    say(sock, b"begin")
    hear(sock)
    flying, times, n = [], [], 0
    before, begin = cpu(), time.perf_counter()
    while True:
        while len(flying) < depth and time.perf_counter() - begin < seconds:
            flying.append((n % count, start(n % count)))
            n += 1
        if not flying:
            break
        rest = []
        for i, at in flying:
            if a.check_xfer_state(handles[i]) == "DONE":
                times.append((time.perf_counter() - at) * 1e3)
            else:
                rest.append((i, at))
        flying = rest
        time.sleep(PAUSE)
    took, spent = time.perf_counter() - begin, cpu() - before
    say(sock, b"end")
    other = json.loads(hear(sock))
    print(
        json.dumps(
            {
                "bytes": n * block,
                "seconds": took,
                "sender_cpu": spent,
                "receiver_cpu": other["cpu"],
                "arrived": other["arrived"],
                "block_ms": times,
            }
        ),
        flush=True,
    )


def main() -> None:
    mode, host, port, block, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    if mode == "recv":
        receive(host, port, block, count)
    else:
        send(host, port, block, count, int(sys.argv[6]), float(sys.argv[7]))
    sys.stdout.flush()
    os._exit(0)  # the library may crash while the interpreter ends


main()
