"""Triton's batchers in a config.pbtxt: their fields by path, and what Triton would refuse.

    set_field(config, "dynamic_batching.max_queue_delay_microseconds", "500")
    get_field(config, "dynamic_batching.preferred_batch_size")              # "4, 8"
    check(config)                                                           # CourseError if Triton would refuse it

Who forms a batch is one choice: no batcher, `dynamic_batching` or `sequence_batching`. To set a field of one of them,
or of one of the sequence batcher's two strategies, is to choose it.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

from inflight.errors import CourseError
from inflight.triton.repository.parameter import Parameter, Problem

# Fields that an editor offers. Blank means that the field is not there, and Triton takes its own default.
FIELDS: dict[str, Parameter] = {
    "max_batch_size": Parameter("int", None, "Most items in a batch; 0: the model takes no batches.", low=0),
    "instance_group.count": Parameter("int", None, "Copies of the model that work side by side.", low=1),
    "dynamic_batching": Parameter("bool", False, "Put requests that wait together into one batch."),
    "dynamic_batching.preferred_batch_size": Parameter("ints", None, "Sizes that need not wait any longer.", low=1),
    "dynamic_batching.max_queue_delay_microseconds": Parameter("int", None, "Longest wait for more requests.", low=0),
    "dynamic_batching.preserve_ordering": Parameter("bool", False, "Answer in the order of arrival."),
    "dynamic_batching.priority_levels": Parameter("int", None, "Number of levels; 1 is served first.", low=0),
    "dynamic_batching.default_priority_level": Parameter("int", None, "Level of a request that names none.", low=0),
    "dynamic_batching.default_queue_policy.max_queue_size": Parameter(
        "int", None, "Most that wait; 0: no limit.", low=0
    ),
    "dynamic_batching.default_queue_policy.default_timeout_microseconds": Parameter(
        "int", None, "Longest wait in the queue; 0: no limit.", low=0
    ),
    "dynamic_batching.default_queue_policy.timeout_action": Parameter(
        "choice", "REJECT", "What becomes of a request that waited longer.", ("REJECT", "DELAY")
    ),
    "dynamic_batching.default_queue_policy.allow_timeout_override": Parameter(
        "bool", False, "Let a request name a shorter time-out of its own."
    ),
    "sequence_batching.max_sequence_idle_microseconds": Parameter(
        "int", None, "A sequence without a request for so long is given up.", low=0
    ),
    "sequence_batching.direct.max_queue_delay_microseconds": Parameter(
        "int", None, "Longest wait for the other sequences of the batch.", low=0
    ),
    "sequence_batching.direct.minimum_slot_utilization": Parameter(
        "float", None, "Part of the batch's places that need no longer wait.", low=0, high=1
    ),
    "sequence_batching.oldest.max_candidate_sequences": Parameter("int", None, "Most sequences that are begun.", low=1),
    "sequence_batching.oldest.preferred_batch_size": Parameter(
        "ints", None, "Sizes that need not wait any longer.", low=1
    ),
    "sequence_batching.oldest.max_queue_delay_microseconds": Parameter(
        "int", None, "Longest wait for more requests.", low=0
    ),
}


# Fields --------------------------------------------------------------------------------------------------------------


def get_field(config: ModelConfig, path: str) -> str:
    """Text of a field; blank when it is not there or has protobuf's default value, as 0 or false."""
    *parents, name = path.split(".")
    message = config
    for parent in parents:
        if not _has(message, parent):
            return ""
        message = _child(message, parent)
    if not _has(message, name):
        return ""
    value, field = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return "true"
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if field.label == FieldDescriptor.LABEL_REPEATED:
        return ", ".join(map(str, value))
    return f"{value:g}" if field.type == FieldDescriptor.TYPE_FLOAT else str(value).lower()


def set_field(config: ModelConfig, path: str, text: str) -> None:
    """Set a field; blank takes it away.

    Raises
    ------
    CourseError
        The field does not take this value. The message is unchanged then.
    """
    try:
        value = FIELDS[path].parse(text)
    except ValueError as allowed:
        raise CourseError(f"{config.name}: {path}: It is {text!r}. It must be {allowed}.") from None
    *parents, name = path.split(".")
    message = config
    for parent in parents:
        if not text and not _has(message, parent):
            return
        message = _child(message, parent)
    field = message.DESCRIPTOR.fields_by_name[name]
    if not text or (field.type == FieldDescriptor.TYPE_MESSAGE and not value):
        message.ClearField(name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(message, name).SetInParent()
    elif field.label == FieldDescriptor.LABEL_REPEATED:
        getattr(message, name)[:] = value
    elif field.type == FieldDescriptor.TYPE_ENUM:
        setattr(message, name, field.enum_type.values_by_name[value].number)
    else:
        setattr(message, name, value)


def _has(message, name: str) -> bool:
    """Whether a field is set; one without presence counts as set when it is not zero."""
    return any(field.name == name for field, _ in message.ListFields())


def _child(message, name: str):
    """A message inside a message, made if it is not there; of several the first."""
    child = getattr(message, name)
    if message.DESCRIPTOR.fields_by_name[name].label == FieldDescriptor.LABEL_REPEATED:
        return child[0] if child else child.add()
    child.SetInParent()
    return child


# Checking -------------------------------------------------------------------------------------------------------------

_CONTROL = ModelSequenceBatching.Control
_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def check(config: ModelConfig) -> None:
    """CourseError for the first of `problems`."""
    for problem in problems(config):
        raise CourseError(str(problem))


def problems(config: ModelConfig) -> list[Problem]:
    """What Triton would refuse of `max_batch_size` and of the batcher; `file` of each is the model's name.

    The rules are those of `ValidateModelConfig` in Triton's core (src/model_config_utils.cc). What Triton accepts and
    ignores, such as a default priority without priorities, is none.
    """
    found = []
    if config.max_batch_size < 0:
        found.append(("max_batch_size", f"It is {config.max_batch_size}.", "It must be at least 0."))
    if config.HasField("dynamic_batching"):
        found += _dynamic_problems(config)
    if config.HasField("sequence_batching"):
        found += _sequence_problems(config)
    return [Problem(config.name, *problem) for problem in found]


def _dynamic_problems(config: ModelConfig) -> list[tuple[str, str, str]]:
    batcher, path = config.dynamic_batching, "dynamic_batching"
    found = _size_problems(f"{path}.preferred_batch_size", batcher.preferred_batch_size, config.max_batch_size)
    if batcher.priority_levels:
        named = [(f"{path}.default_priority_level", batcher.default_priority_level)]
        named += [(f"{path}.priority_queue_policy", level) for level in sorted(batcher.priority_queue_policy)]
        found += [
            (
                field,
                f"It names level {level}.",
                f"It must be one of the priority levels, 1 to {batcher.priority_levels}.",
            )
            for field, level in named
            if not 1 <= level <= batcher.priority_levels
        ]
    return found + (_order_problems(batcher, path) if batcher.preserve_ordering else [])


def _order_problems(batcher: ModelDynamicBatching, path: str) -> list[tuple[str, str, str]]:
    """What changes the order of requests, and so cannot be where it is to be preserved."""
    found = []
    if batcher.priority_levels > 1:
        found.append(
            (
                f"{path}.preserve_ordering",
                f"There are {batcher.priority_levels} priority levels, which change the order of requests.",
                "With it there may be only one priority level: take them out, or preserve_ordering.",
            )
        )
    policies = {f"{path}.default_queue_policy": batcher.default_queue_policy}
    policies |= {
        f"{path}.priority_queue_policy[{level}]": policy
        for level, policy in sorted(batcher.priority_queue_policy.items())
    }
    return found + [
        (
            f"{field}.timeout_action",
            "DELAY changes the order of requests.",
            "It must be REJECT, or take preserve_ordering out.",
        )
        for field, policy in policies.items()
        if policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds
    ]


def _sequence_problems(config: ModelConfig) -> list[tuple[str, str, str]]:
    batcher, path = config.sequence_batching, "sequence_batching"
    found = _size_problems(
        f"{path}.oldest.preferred_batch_size", batcher.oldest.preferred_batch_size, config.max_batch_size
    )
    if not 0 <= batcher.direct.minimum_slot_utilization <= 1:
        found.append(
            (
                f"{path}.direct.minimum_slot_utilization",
                f"It is {batcher.direct.minimum_slot_utilization:g}.",
                "It must be at least 0 and at most 1.",
            )
        )
    seen = set()
    for control_input in batcher.control_input:
        for control in control_input.control:
            kind, field = _CONTROL.Kind.Name(control.kind), f"{path}.control_input {control_input.name!r}"
            found += [(field, what, fix) for what, fix in _control_problems(kind, control)]
            if not control_input.name:
                found.append((field, f"The tensor for {kind} has no name.", "Give it a name."))
            if kind in seen:
                found.append((field, f"There are multiple tensors for {kind}.", "Leave one of them."))
            seen.add(kind)
    return found


def _control_problems(kind: str, control: ModelSequenceBatching.Control) -> list[tuple[str, str]]:
    """What is wrong with one control: a correlation id has a type, the others a value for false and one for true."""
    values = {name: len(getattr(control, name)) for name in ("int32_false_true", "fp32_false_true", "bool_false_true")}
    given = {name: number for name, number in values.items() if number}
    if kind == "CONTROL_SEQUENCE_CORRID":
        if given:
            return [(f"{kind} has {', '.join(given)}, but is not true or false.", "Take that out.")]
        if DataType.Name(control.data_type) not in _CORRID_TYPES:
            return [
                (
                    f"{kind} has the data_type {DataType.Name(control.data_type)}.",
                    f"It must be {', '.join(_CORRID_TYPES[:-1])} or {_CORRID_TYPES[-1]}.",
                )
            ]
        return []
    if len(given) != 1:
        return [
            (
                f"{kind} has {' and '.join(given) or 'no values for false and true'}.",
                f"It must have one of {', '.join(values)}.",
            )
        ]
    [(name, number)] = given.items()
    return [] if number == 2 else [(f"{kind} has {name} of length {number}.", "It must have exactly 2 values.")]


def _size_problems(field: str, sizes, max_batch_size: int) -> list[tuple[str, str, str]]:
    """Preferred sizes of a batch that cannot be."""
    fix = f"It must be positive and at most max_batch_size, which is {max_batch_size}."
    return [(field, f"It has the size {size}.", fix) for size in sizes if not 1 <= size <= max_batch_size]
