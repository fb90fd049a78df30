"""A hands-on course on serving LLMs with Triton. `inflight doctor` says what this machine has for it."""

import os
import sys

from inflight.errors import CourseError

__all__ = ["CourseError", "__version__"]
__version__ = "0.1.0"

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
