"""Which tensors clients find, of which types and shapes, and what of them this engine has not.

    assemble("repo", engine_dir, contract="0.5")        # for clients of the first workshops
    assemble("repo", engine_dir, contract="llmapi")     # for those of TensorRT-LLM's model of today
    pd.DataFrame(contract_differences())                # what changed, when, and what it breaks

`assets/contracts/tensors.csv` is the table: a row for each tensor that one contract has otherwise than another, or that
is there for outside clients alone; a column for each contract, with type, shape, and "?" where it is optional. The
templates have all others, which are the same in each. The served config is made from both, and a client makes its
request from the served config.

What TensorRT-LLM has and this engine has not is accepted when it asks for nothing: the backend's own clients send some
of it always. Whoever asks for more is refused with the reason, instead of with Triton's "unexpected inference input".
Of such outputs none is ever given: a client may name them, and is told then that there are none.

The models' processes import this: nothing is taken here but NumPy.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from inflight.errors import CourseError
from inflight.paths import ASSETS
from inflight.triton.repository.layout import BASELINE, CONTRACTS, DEFAULT_CONTRACT, LLMAPI, OLDEST_CONTRACT

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

TABLES = ASSETS / "contracts"

# How a value that asks for nothing is called, in "NAME must be ..." -> how it is known.
_ASKS_NOTHING: dict[str, Callable[[np.ndarray], bool]] = {
    "anything": lambda values: True,
    "left out": lambda values: not values.any(),  # zeros, blanks, or no values
    "empty": lambda values: not values.size,
    "false": lambda values: not values.any(),
    "1": lambda values: bool((values == 1).all()),
    "0 or 1": lambda values: bool(((values == 0) | (values == 1)).all()),
    "at most 1": lambda values: bool((values <= 1).all()),
    "of one token at most": lambda values: values.size <= len(values),  # of each prompt
}


@dataclass(frozen=True)
class Tensor:
    """A row of the table.

    Attributes
    ----------
    model, kind, name : str
        Of which model's "input" or "output" it is a row.
    ensemble : str
        The ensemble's name for it; blank: the ensemble has none, or a row of its own. Of `llmapi`, which has no
        ensemble, what the course calls the same thing.
    forms : dict
        Contract -> how it is there, such as "INT32 [-1]?"; blank: it is not.
    must_be : str
        What asks for nothing, a key of `_ASKS_NOTHING`; blank: it is obeyed.
    why : str
        The reason, for who asks for something, and what to do instead.
    """

    model: str
    kind: str
    name: str
    ensemble: str
    forms: dict[str, str]
    must_be: str
    why: str

    def refusal(self, values: np.ndarray) -> str | None:
        """Why these values are refused, as a sentence; None when they ask for nothing."""
        if _ASKS_NOTHING[self.must_be](values):
            return None
        return f"{self.ensemble or self.name} must be {self.must_be}: {self.why}"


@cache
def table() -> tuple[Tensor, ...]:
    """The table, in the order in which tensors are added to a config."""
    with open(TABLES / "tensors.csv", encoding="utf-8", newline="") as file:
        return tuple(
            Tensor(
                row["model"],
                row["kind"],
                row["name"],
                row["ensemble"],
                {contract: row[contract] for contract in CONTRACTS},
                row["must be"],
                row["why"],
            )
            for row in csv.DictReader(file)
        )


def foreign(model: str) -> dict[str, Tensor]:
    """The inputs of a model that are there for outside clients alone, by name."""
    return {row.name: row for row in table() if row.model == model and row.must_be}


def llmapi_names() -> dict[str, str]:
    """The course's name of each input of TensorRT-LLM's model of today -> its name there."""
    return {row.ensemble: row.name for row in table() if row.model == LLMAPI and row.kind == "input" and row.ensemble}


def contract_differences() -> list[dict[str, str]]:
    """What changed in TensorRT-LLM's contract, one row a change: when, which tensors, what was, what is, what breaks.

    `as before with` says which option has the tensors as they were; blank: clients of both sides are served.
    """
    with open(TABLES / "history.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def contract_values(contract: str) -> dict[str, Any]:
    """Values of the templates' variables that a contract asks for, unless others are given.

    Raises
    ------
    CourseError
        There is no such contract.
    """
    if contract not in CONTRACTS:
        raise CourseError(
            f"There is no contract {contract!r}. There are {OLDEST_CONTRACT}, for clients of TensorRT-LLM 0.5 and 0.6, "
            f"{DEFAULT_CONTRACT}, for those of 0.9 to 0.19, and {LLMAPI}, for those of its model of today."
        )
    return {"exclude_input_in_output": False} if contract == OLDEST_CONTRACT else {}


def apply_contract(config: ModelConfig, contract: str) -> None:
    """Give the config of a template, which is changed, the tensors of a contract."""
    steps = {step.model_name: step for step in config.ensemble_scheduling.step}
    for row in table():
        if form := row.forms[contract]:
            if row.model == config.name:
                _put(config, row.kind, row.name, form)
            elif row.ensemble and row.model in steps:
                step = steps[row.model]
                (step.input_map if row.kind == "input" else step.output_map)[row.name] = row.ensemble
                _put(config, row.kind, row.ensemble, form)
    if config.name == BASELINE and contract == OLDEST_CONTRACT:
        config.max_batch_size = 0


def parsed(form: str) -> tuple[str, list[int], bool]:
    """Type, shape, and whether it is optional: "INT32 [-1, 3]?" -> ("INT32", [-1, 3], True)."""
    data_type, _, rest = form.partition(" [")
    dims, _, mark = rest.partition("]")
    return data_type, [int(length) for length in dims.split(",")], mark == "?"


def _put(config: ModelConfig, kind: str, name: str, form: str) -> None:
    """Add a tensor to a config, or give the one that it has another form."""
    data_type, dims, optional = parsed(form)
    tensors = config.input if kind == "input" else config.output
    tensor: Any = next((one for one in tensors if one.name == name), None) or tensors.add(name=name)
    tensor.ClearField("dims")
    tensor.MergeFrom(type(tensor)(data_type=f"TYPE_{data_type}", dims=dims))
    if kind == "input":
        tensor.optional = optional
