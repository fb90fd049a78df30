"""A hands-on course on serving LLMs with Triton. `inflight doctor` says what this machine has for it."""

import os
import sys

from inflight.errors import CourseError

__all__ = ["CourseError", "__version__"]
__version__ = "1.0.0"

# Nothing is sent home, by us or by a library. Here, because this runs before any of them is imported, in every process
# of ours; what those start inherits the variables.
# Importing OpenVINO reports to an analytics host, unless its telemetry package cannot be imported. Set-up leaves that
# package out; this is for environments that have it from elsewhere. OpenVINO's own way to opt out sends a report, too.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
os.environ.update(
    DO_NOT_TRACK="1",
    HF_HUB_DISABLE_TELEMETRY="1",  # what machine this is, in the headers of a download
    HF_HUB_DISABLE_UPDATE_CHECK="1",
    DISABLE_SAFETENSORS_CONVERSION="1",  # transformers asks the Hub to convert what it finds in another format
    PIP_DISABLE_PIP_VERSION_CHECK="1",
)
# The Chromium that draws plotly's pictures asks its maker for news. It needs no network: its proxy is a closed port.
os.environ.setdefault("CHOREO_PROXY_SERVER", "127.0.0.1:9")


def _ask_directly() -> None:
    """Add this machine, and the Triton that INFLIGHT_URL names, to what is asked without the environment's proxy.

    A client reads these variables when it is made: gRPC the last, curl, requests, urllib and httpx the others.
    """
    named = [os.environ.get(f"INFLIGHT_{which}URL", "") for which in ("", "GRPC_", "METRICS_")]
    hosts = [url.rpartition("://")[2].partition("/")[0].rpartition(":")[0] for url in named]
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        before = os.environ.get(name, given) if name == "no_grpc_proxy" else given
        if before.strip() != "*" or name == "no_grpc_proxy":  # every host, for all but gRPC, and only where it is alone
            direct = [*map(str.strip, before.split(",")), "127.0.0.1", "localhost", "::1", *hosts]
            os.environ[name] = ",".join(dict.fromkeys(filter(None, direct)))
    for name in ("all_proxy", "ALL_PROXY"):
        if os.environ.get(name, "").startswith("socks://"):  # as GNOME writes it, and httpx does not understand it
            os.environ[name] = os.environ[name].replace("socks", "socks5", 1)


_ask_directly()
