"""What the process of a Python model runs first: a .pth file of the Python in the server's folder imports it.

The interpreter in Triton's Python backend is made without the environment, whatever LANG and PYTHONUTF8 say (as in
https://github.com/triton-inference-server/server/issues/5321): its file names are ASCII, and that cannot be changed any
more. A name with other letters cannot be encoded, and one that the system gives comes as surrogates, which no library
in C++ or Rust takes, Triton's own included. But what cannot be encoded goes to an error handler, and that may say which
bytes are meant.
"""

import codecs
import contextlib
import locale
import os
import site
import sys

_not_ascii = codecs.lookup_error("surrogateescape")


def _as_utf8(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and error.encoding == "ascii":
        return error.object[error.start : error.end].encode("utf-8", "surrogateescape"), error.end
    return _not_ascii(error)


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def add_packages(folders: list[str]) -> None:
    """Add the folders of the packages, once their paths can be opened."""
    for folder in folders:
        site.addsitedir(folder)


if sys.getfilesystemencoding() == "ascii":  # not in a Python that a model starts
    codecs.register_error("surrogateescape", _as_utf8)
    os.environ.decodevalue = _decoded  # type: ignore[assignment]
    os.getcwd = lambda: _decoded(os.getcwdb())
    with contextlib.suppress(locale.Error):  # a system without this locale reads text files as ASCII
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    # Triton puts the program's folder first on the path, and without one the current folder: any random.py in it, and
    # its 1/model.py in place of a model's own.
    sys.argv = [__file__]
