"""What each side of a benchmark computes on. A ratio of two devices says nothing of the ways that were compared.

devices = {"V1": of_engine(engine_dir), "llama-python": machine.device_name()}
check(devices)
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from inflight import engine, machine, tiers
from inflight.errors import CourseError


def of_engine(engine_dir: str | Path) -> str:
    """Name of the device that an engine computes on."""
    return machine.device_name(engine.read(engine_dir).device)


def of_server(url: str) -> str:
    """What is known of a running server's: where it computes is not told by it."""
    return f"whatever {url} computes on"


def of_peer(url: str, named: str | None) -> str:
    """What another server computes on: as it was named, or, on a machine without a GPU, its CPU.

    Raises
    ------
    CourseError
        It was not named, and can be another device than this machine's CPU.
    """
    if named:
        return named
    if not _is_here(url) or tiers.here().gpu:
        raise CourseError(
            f"What the server at {url} computes on cannot be found out from here: name it, such as "
            f'--their-device "{machine.device_name()}".'
        )
    return machine.device_name(tiers.CPU)


def check(devices: dict[str, str], mix_devices: bool = False) -> None:
    """Refuse a comparison of different devices, unless it is asked for.

    Parameters
    ----------
    devices : dict of str to str
        Name of the device by side.
    """
    if len({name.casefold() for name in devices.values()}) > 1 and not mix_devices:
        sides = " and ".join(f"{side} computes on {name}" for side, name in devices.items())
        raise CourseError(
            f"{sides}: a ratio would compare the devices. Put both on one (an engine by `--tier`, all else by "
            f"CUDA_VISIBLE_DEVICES), or ask for it with --mix-devices."
        )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
