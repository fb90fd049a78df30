"""In place of OpenVINO's telemetry, which reports each import of OpenVINO: without it, OpenVINO reports nothing.

`inflight lab` puts this folder on the path of its kernels, for environments into which pip has installed that package.
"""

raise ImportError("OpenVINO's telemetry is left out: the course sends nothing")
