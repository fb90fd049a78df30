"""Shared by the course's Python models inside Triton: reading tensors, answering errors, exporting metrics.

Imported by `model.py` files, which run in a process that Triton starts; `triton_python_backend_utils` exists only
there.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from inflight.errors import ENGINE_FAILED, CourseError
from inflight.triton import repository
from inflight.triton.repository.request import ERROR_CODE, fields

log = logging.getLogger("inflight.triton.model.python_model")

# UTF-8 bytes of all texts of one tensor: some 60,000 tokens, which take a second at worst. Ten times as much holds a
# tokenizer for longer than a client waits, and its memory does not come back.
MAX_TEXT_BYTES = 256 * 1024
MAX_TEXTS = 1024
MAX_VALUES = 256 * 1024  # of a tensor
MAX_SENTENCE = 500  # characters
UNANSWERED_S = 20  # Triton takes less for a message, also on a busy machine

# The process of a model ends with the model. To collect PyTorch's objects before would take a second of CPU time from
# the model that was loaded in its place.
atexit.register(gc.freeze)


def parameters(args: dict[str, Any]) -> dict[str, Any]:
    """Return the model's parameters from its config.pbtxt, as Python values."""
    config = json.loads(args["model_config"])
    texts = {name: value["string_value"] for name, value in config["parameters"].items()}
    return repository.typed_parameters(config["name"], texts)


def output_types(args: dict[str, Any]) -> dict[str, Any]:
    """Return NumPy's type of each of the model's outputs; an older contract may have others."""
    config = json.loads(args["model_config"])
    return {output["name"]: pb_utils.triton_string_to_numpy(output["data_type"]) for output in config["output"]}


def input_types(args: dict[str, Any]) -> dict[str, str]:
    """Return Triton's type of each of the model's inputs, such as "TYPE_INT32"; an older contract may have others."""
    return {given["name"]: given["data_type"] for given in json.loads(args["model_config"])["input"]}


def is_decoupled(args: dict[str, Any]) -> bool:
    return bool(json.loads(args["model_config"]).get("model_transaction_policy", {}).get("decoupled", False))


def device(args: dict[str, Any]) -> str:
    """Return the device of this instance, as its `instance_group` says: "cpu", or a GPU such as "cuda:0"."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"


def array(request: Any, name: str, default: Any = None) -> NDArray[Any] | None:
    """Return input tensor `name` with its batch dimension, or `default` when the request does not have it.

    Raises
    ------
    CourseError
        It has more values than any model here has a use for, or none.
    """
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None if default is None else np.asarray(default)
    values = _values(tensor)
    if values.size > MAX_VALUES:
        raise CourseError(f"{name} has {values.size:,} values: send at most {MAX_VALUES:,}.")
    return values


def _values(tensor: Any) -> NDArray[Any]:
    values: NDArray[Any] = tensor.as_numpy()
    if values.ndim and len(values) == 0:
        raise CourseError(f"{tensor.name()} has no values: send some.")
    return values


def refuse_foreign(request: Any, model: str) -> None:
    """Refuse a request whose input asks for a feature that this model lacks.

    Raises
    ------
    CourseError
        With the reason.
    """
    known = fields(model)
    for tensor in request.inputs():
        field = known.get(tensor.name())
        if field and field.must_be and (refusal := field.refusal(model, _values(tensor))):
            raise CourseError(refusal)


def required(request: Any, name: str) -> NDArray[Any]:
    """`array`, or CourseError when the request does not have it: where others are optional, Triton only counts them."""
    values = array(request, name)
    if values is None:
        raise CourseError(f"The request has no {name}: send it.")
    return values


def scalar(request: Any, name: str, default: Any = None, row: int = 0) -> Any:
    """Return the single value of input tensor `name`; in a request with several prompts, that of prompt `row`."""
    values = array(request, name)
    return default if values is None else values.reshape(-1)[row].item()


def wants_stream(request: Any, name: str, decoupled: bool, row: int = 0, setting: str = "decoupled_mode") -> bool:
    """Say whether input tensor `name` asks for an answer in pieces; CourseError when the model is not decoupled.

    `setting` is the one that would make it decoupled.
    """
    wants = scalar(request, name, False, row)
    if wants and not decoupled:
        raise CourseError(
            "Streaming is only supported if the model is deployed using decoupled mode: "
            f"set {setting} to true, or leave out streaming."
        )
    return bool(wants)


def texts(request: Any, name: str, called: str, row: int | None = None) -> list[str]:
    """Return all texts of input tensor `name`, which clients know as `called`; none when the request does not have it.

    With `row`, those of that prompt alone.

    Raises
    ------
    CourseError
        They are too many or too long together, or bytes that are not UTF-8.
    """
    items = array(request, name)
    if items is None:
        return []
    items = (items if row is None else items[row]).reshape(-1)
    if len(items) > MAX_TEXTS:
        raise CourseError(f"{called} has {len(items):,} texts: send at most {MAX_TEXTS:,}.")
    size = sum(map(len, items))
    if size > MAX_TEXT_BYTES:
        raise CourseError(f"{called} has {size:,} bytes: send at most {MAX_TEXT_BYTES:,}.")
    try:
        return [item.decode("utf-8") for item in items]
    except UnicodeDecodeError as error:
        raise CourseError(
            f"{called} is not valid UTF-8 (byte {error.start}): send the text encoded as UTF-8."
        ) from None


def prompt(request: Any) -> str:
    """Return the one text of a request; CourseError when there are more, or when it is empty."""
    [given] = prompts(request, at_most=1)
    return given


def prompts(request: Any, name: str = "text_input", at_most: int = MAX_TEXTS) -> list[str]:
    """Return the texts of a request, one in each row; CourseError when there are more, or when one is empty."""
    rows = len(required(request, name))
    given = texts(request, name, "text_input")
    if len(given) != rows or rows > at_most:
        raise CourseError(
            f"Expected batch dimension to be 1 for each request, got {len(given)}: send one prompt a request."
        )
    if not all(text.strip() for text in given):
        raise CourseError("text_input is empty: send at least one character that is not a space.")
    return given


def request_parameters(request: Any) -> dict[str, Any]:
    """Return the parameters that the client sent with the request, by name."""
    try:
        given: dict[str, Any] = json.loads(request.parameters() or "{}")
        return given
    except ValueError:
        raise CourseError("The request's parameters cannot be read: send names with numbers, true or false.") from None


def answer(function: Callable[..., list[Any]], *arguments: Any) -> pb_utils.InferenceResponse:
    """Return the tensors of `function(*arguments)` as a response; whatever it raises becomes the response's error."""
    try:
        return pb_utils.InferenceResponse(function(*arguments))
    except Exception as error:  # only this request fails
        return error_response(error)


def error_response(error: Exception, with_code: bool = False) -> pb_utils.InferenceResponse:
    """Make an error response of one sentence: a CourseError's own; details of any other error go only into the log.

    A stream's error has nothing but its sentence. `with_code` puts the error's code behind it, for `connection`.
    """
    if not isinstance(error, CourseError):
        log.error("a request failed", exc_info=error)
        sentence = f"The model failed on this request ({type(error).__name__}): its server's log says where."
        error = CourseError(sentence, code=ENGINE_FAILED)
    sentence = str(error)[:MAX_SENTENCE]  # it may quote what the client sent
    status = pb_utils.TritonError.INTERNAL if error.code == ENGINE_FAILED else pb_utils.TritonError.INVALID_ARG
    told = f"{sentence} #{error.code}" if with_code else sentence
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(told, status))


def wants_code(request: Any) -> bool:
    """Say whether the client of a request asks for the codes of errors, which others would read as part of a text."""
    return f'"{ERROR_CODE}"' in request.parameters()


class ExecutionLog:
    """Writes a JSON line an execution to a file that several instances of a model append to; nothing without a path.

    Raises
    ------
    CourseError
        The file cannot be written.
    """

    def __init__(self, path: str | None):
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None
        except OSError as error:
            raise CourseError(
                f"The execution log {path} cannot be written ({error.strerror}). Name another file."
            ) from None

    def write(self, **execution: Any) -> None:
        """Append a line; in one piece, so that lines of several instances do not mix."""
        if self._file is not None:
            os.write(self._file, (json.dumps(execution) + "\n").encode())


class Gauges:
    """A model's own figures at Triton's /metrics.

    Parameters
    ----------
    families : dict
        Name of a family of gauges -> its description, and the label that tells its gauges apart.
    """

    def __init__(self, args: dict[str, Any], families: dict[str, tuple[str, str]]):
        self._model = {"model": args["model_name"], "version": args["model_version"]}
        self._told = families
        self._families: dict[str, Any] = {}
        self._gauges: dict[tuple[str, str], Any] = {}

    def show(self, family: str, values: dict[str, float]) -> None:
        """Set the gauge of each label to its value; each takes a message to the server.

        The message holds Python's lock until it is answered. If Triton is killed just then, no answer comes, and no
        more of Python runs that would end this process: the kernel's alarm does.
        """
        signal.alarm(UNANSWERED_S)
        try:
            text, name = self._told[family]
            if family not in self._families:
                made = pb_utils.MetricFamily(name=family, description=text, kind=pb_utils.MetricFamily.GAUGE)
                self._families[family] = _never_destroyed(made)
            for label, value in values.items():
                if (family, label) not in self._gauges:
                    gauge = self._families[family].Metric(labels={**self._model, name: label})
                    self._gauges[family, label] = _never_destroyed(gauge)
                self._gauges[family, label].set(value)
        finally:
            signal.alarm(0)


def _never_destroyed(metric: Any) -> Any:
    """Keep Python from destroying a metric, and return it.

    Destroyed when the process ends, it has no server to tell any more and crashes. Destroyed in `finalize`, it takes
    the figures away that a newer instance of the model has under the same name, and Triton 2.51 crashes.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(metric))
    return metric
