"""Runs a command where there is no network, and writes down whatever it tries to send to one.

    unshare --user --map-root-user --net --mount --uts python watched_network.py REPORT.json COMMAND …

The namespace has one device, loopback, and every address there is leads to it. A name server on it notes each name that
it is asked for and answers that there is none; a packet socket notes each packet to an address that is not loopback.
What C++ sends is seen as well as what Python sends. The exit status is the command's. Standard library only: the
command shall be the first to import anything.
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
RTM_NEWROUTE, RTN_LOCAL, RT_TABLE_LOCAL, RT_SCOPE_HOST, RTPROT_BOOT, RTA_OIF = 24, 2, 255, 254, 3, 4
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLMSG_ERROR = 0x1, 0x4, 0x400, 2
ETH_P_ALL, SO_ATTACH_FILTER = 3, 26
NO_SUCH_NAME = 0x8183
LAST_NAME, LAST_ADDRESS = "the.last.invalid", "192.0.2.1"

# Instructions of a packet filter: opcode, jumps when true and when false, operand.
LOAD_BYTE, LOAD_WORD, AND, IF_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
NOT_TO_LOOPBACK = [
    (LOAD_BYTE, 0, 0, 0),
    (AND, 0, 0, 0xF0),  # the version of IP
    (IF_EQUAL, 0, 2, 0x40),
    (LOAD_BYTE, 0, 0, 16),
    (IF_EQUAL, 8, 9, 127),
    (LOAD_WORD, 0, 0, 24),  # IPv6: ::1 is three words of 0 and one of 1
    (IF_EQUAL, 0, 7, 0),
    (LOAD_WORD, 0, 0, 28),
    (IF_EQUAL, 0, 5, 0),
    (LOAD_WORD, 0, 0, 32),
    (IF_EQUAL, 0, 3, 0),
    (LOAD_WORD, 0, 0, 36),
    (IF_EQUAL, 0, 1, 1),
    (RETURN, 0, 0, 0),
    (RETURN, 0, 0, 0xFFFF),
]


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def every_address_is_here(family: int) -> None:
    """A route of the whole address space to loopback, as `ip route add local default dev lo` makes it."""
    route = struct.pack("8BI", family, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL, 0)
    body = route + struct.pack("HHI", 8, RTA_OIF, socket.if_nametoindex("lo"))
    header = struct.pack("IHHII", 16 + len(body), RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(header + body)
        _, kind, _, _, _, error = struct.unpack_from("IHHIIi", netlink.recv(4096))
    if kind != NLMSG_ERROR or error:
        raise OSError(-error, "the route to loopback cannot be made")


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


def note_packets(capture: socket.socket, packets: list[str]) -> None:
    while True:
        packet = capture.recv(0xFFFF)
        version = packet[0] >> 4
        family, address = (socket.AF_INET, packet[16:20]) if version == 4 else (socket.AF_INET6, packet[24:40])
        packets.append(socket.inet_ntop(family, address))


def watch() -> dict[str, list[str]]:
    """Start to watch; the lists that are returned grow."""
    loopback_up()
    seen: dict[str, list[str]] = {"lookups": [], "packets": []}
    capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in NOT_TO_LOOPBACK)
    buffer = ctypes.create_string_buffer(code)
    capture.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(NOT_TO_LOOPBACK), ctypes.addressof(buffer))
    )
    capture.bind(("lo", 0))
    for family in (socket.AF_INET, socket.AF_INET6):
        every_address_is_here(family)
    cover("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    cover("/etc/nsswitch.conf", "hosts: files dns\n")
    cover("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    socket.sethostname("localhost")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=note_lookups, args=(server, seen["lookups"]), daemon=True).start()
    threading.Thread(target=note_packets, args=(capture, seen["packets"]), daemon=True).start()
    return seen


def wait_for_all(seen: dict[str, list[str]]) -> None:
    """Send one more of each and wait for it: what was sent before has been noted by then."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", (LAST_ADDRESS, 9))
    with contextlib.suppress(socket.gaierror):
        socket.getaddrinfo(LAST_NAME, None)
    while LAST_ADDRESS not in seen["packets"] or LAST_NAME not in seen["lookups"]:
        time.sleep(0.01)


if __name__ == "__main__":
    report, *command = sys.argv[1:]
    seen = watch()
    status = subprocess.run(command).returncode
    wait_for_all(seen)
    sent = {kind: sorted(set(notes) - {LAST_NAME, LAST_ADDRESS}) for kind, notes in seen.items()}
    Path(report).write_text(json.dumps(sent))
    sys.exit(status)
