"""Runs a command where there is no network, and writes down whatever it tries to send to one.

    unshare --user --map-root-user --net --mount --uts python watched_network.py REPORT.json COMMAND …

The namespace has one device, loopback, and a way to no other address. A name server on it notes each name that it is
asked for and answers that there is none; what is sent to an address without asking for a name, Linux counts. What C++
sends is seen as well as what Python sends. The exit status is the command's. Standard library only: the command shall
be the first to import anything.
"""

import contextlib
import ctypes
import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MS_BIND, SIOCSIFFLAGS, IFF_UP = 4096, 0x8914, 1
NO_SUCH_NAME = 0x8183
LAST_NAME = "the.last.invalid"


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def cover(path: str, text: str) -> None:
    """`text` in place of a file of the system, for this namespace alone."""
    if not Path(path).exists():
        return
    with tempfile.NamedTemporaryFile("w", suffix=Path(path).name, delete=False) as file:
        file.write(text)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(file.name.encode(), str(Path(path).resolve()).encode(), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), f"{path} cannot be covered")
    Path(file.name).unlink()


def note_lookups(server: socket.socket, lookups: list[str]) -> None:
    while True:
        query, sender = server.recvfrom(4096)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode(errors="replace"))
            at += 1 + query[at]
        lookups.append(".".join(labels))
        header = query[:2] + struct.pack(">5H", NO_SUCH_NAME, 1, 0, 0, 0)
        server.sendto(header + query[12 : at + 5], sender)


def watch() -> list[str]:
    """Start to watch; the list of names that is returned grows."""
    loopback_up()
    cover("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    cover("/etc/nsswitch.conf", "hosts: files dns\n")
    cover("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    socket.sethostname("localhost")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    lookups: list[str] = []
    threading.Thread(target=note_lookups, args=(server, lookups), daemon=True).start()
    return lookups


def wait_for_all(lookups: list[str]) -> None:
    """Ask for one more name and wait for it: what was asked for before has been noted by then."""
    with contextlib.suppress(socket.gaierror):
        socket.getaddrinfo(LAST_NAME, None)
    while LAST_NAME not in lookups:
        time.sleep(0.01)


def without_a_way() -> int:
    """How often something was to go to an address that this namespace has no way to."""
    names, counts = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:")]
    of_ip6 = dict(map(str.split, Path("/proc/net/snmp6").read_text().splitlines()))
    return int(counts[names.index("OutNoRoutes")]) + int(of_ip6["Ip6OutNoRoutes"])


if __name__ == "__main__":
    report, *command = sys.argv[1:]
    lookups = watch()
    status = subprocess.run(command).returncode
    wait_for_all(lookups)
    Path(report).write_text(json.dumps({"lookups": sorted({*lookups} - {LAST_NAME}), "without_a_way": without_a_way()}))
    sys.exit(status)
