"""Triton's own fields in a config.pbtxt, by path. Triton itself refuses values that do not fit together, at the load.

    set_field(config, "dynamic_batching.max_queue_delay_microseconds", "500")
    get_field(config, "dynamic_batching.preferred_batch_size")              # "4, 8"

Who forms a batch is one choice: no batcher, `dynamic_batching` or `sequence_batching`. To set a field of one of them,
or of one of the sequence batcher's two strategies, is to choose it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton.repository.parameters import Parameter


def _row(path: str, help: str) -> Parameter:
    """Describe a field's values by its type. Blank: the field is not there, and Triton takes its own default."""
    *parents, name = path.split(".")
    message = ModelConfig.DESCRIPTOR
    for parent in parents:
        message = message.fields_by_name[parent].message_type
    field = message.fields_by_name[name]
    if field.type == FieldDescriptor.TYPE_ENUM:
        choices = tuple(value.name for value in field.enum_type.values)
        return Parameter("choice", choices[0], help, choices)
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BOOL):
        return Parameter("bool", False, help)
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return Parameter("float", None, help, low=0)
    return Parameter("ints" if field.label == FieldDescriptor.LABEL_REPEATED else "int", None, help, low=0)


# The fields that an editor offers.
FIELDS: dict[str, Parameter] = {
    path: _row(path, help)
    for path, help in {
        "max_batch_size": "Most items in a batch; 0: the model takes no batches.",
        "instance_group.count": "Copies of the model that work side by side.",
        "dynamic_batching": "Put requests that wait together into one batch.",
        "dynamic_batching.preferred_batch_size": "Batch sizes that are sent off without waiting.",
        "dynamic_batching.max_queue_delay_microseconds": "Longest wait for more requests.",
        "dynamic_batching.preserve_ordering": "Answer in the order of arrival.",
        "dynamic_batching.priority_levels": "Number of levels; 1 is served first.",
        "dynamic_batching.default_priority_level": "Priority of a request that gives none.",
        "dynamic_batching.default_queue_policy.max_queue_size": "Most that wait; 0: no limit.",
        "dynamic_batching.default_queue_policy.default_timeout_microseconds": "Longest wait in the queue; 0: no limit.",
        "dynamic_batching.default_queue_policy.timeout_action": "What happens to a request that waited longer.",
        "dynamic_batching.default_queue_policy.allow_timeout_override": "Let a request ask for a shorter time-out.",
        "sequence_batching.max_sequence_idle_microseconds": "A sequence without a request for this long is dropped.",
        "sequence_batching.direct.max_queue_delay_microseconds": "Longest wait for the other sequences of the batch.",
        "sequence_batching.direct.minimum_slot_utilization": "Share of the batch's slots at which it is sent off.",
        "sequence_batching.oldest.max_candidate_sequences": "Most sequences in progress.",
        "sequence_batching.oldest.max_queue_delay_microseconds": "Longest wait for more requests.",
    }.items()
}


def get_field(config: ModelConfig, path: str) -> str:
    """Return the text of a field; blank when it is not there or has protobuf's default value, as 0 or false."""
    value: Any = json_format.MessageToDict(config, preserving_proto_field_name=True)
    for name in path.split("."):
        message = value[0] if isinstance(value, list) else value  # of several the first
        if name not in message:
            return ""
        value = message[name]
    if isinstance(value, (dict, bool)):
        return "true"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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


def _has(message: Any, name: str) -> bool:
    """Say whether a field is set; one without presence counts as set when it is not zero."""
    return any(field.name == name for field, _ in message.ListFields())


def _child(message: Any, name: str) -> Any:
    """Return a message inside a message, made if it is not there; the first of several."""
    child = getattr(message, name)
    if message.DESCRIPTOR.fields_by_name[name].label == FieldDescriptor.LABEL_REPEATED:
        return child[0] if child else child.add()
    child.SetInParent()
    return child
