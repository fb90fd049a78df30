"""Triton's batchers in a config.pbtxt: their fields by path. What does not fit together Triton refuses, at the load.

    set_field(config, "dynamic_batching.max_queue_delay_microseconds", "500")
    get_field(config, "dynamic_batching.preferred_batch_size")              # "4, 8"

Who forms a batch is one choice: no batcher, `dynamic_batching` or `sequence_batching`. To set a field of one of them,
or of one of the sequence batcher's two strategies, is to choose it.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton.repository.parameter import Parameter

# Fields that an editor offers. Blank means that the field is not there, and Triton takes its own default.
FIELDS: dict[str, Parameter] = {
    "max_batch_size": Parameter("int", None, "Most items in a batch; 0: the model takes no batches.", low=0),
    "instance_group.count": Parameter("int", None, "Copies of the model that work side by side.", low=1),
    "dynamic_batching": Parameter("bool", False, "Put requests that wait together into one batch."),
    "dynamic_batching.preferred_batch_size": Parameter(
        "ints", None, "Batch sizes that are sent off without waiting.", low=1
    ),
    "dynamic_batching.max_queue_delay_microseconds": Parameter("int", None, "Longest wait for more requests.", low=0),
    "dynamic_batching.preserve_ordering": Parameter("bool", False, "Answer in the order of arrival."),
    "dynamic_batching.priority_levels": Parameter("int", None, "Number of levels; 1 is served first.", low=0),
    "dynamic_batching.default_priority_level": Parameter("int", None, "Priority of a request that gives none.", low=0),
    "dynamic_batching.default_queue_policy.max_queue_size": Parameter(
        "int", None, "Most that wait; 0: no limit.", low=0
    ),
    "dynamic_batching.default_queue_policy.default_timeout_microseconds": Parameter(
        "int", None, "Longest wait in the queue; 0: no limit.", low=0
    ),
    "dynamic_batching.default_queue_policy.timeout_action": Parameter(
        "choice", "REJECT", "What happens to a request that waited longer.", ("REJECT", "DELAY")
    ),
    "dynamic_batching.default_queue_policy.allow_timeout_override": Parameter(
        "bool", False, "Let a request ask for a shorter time-out."
    ),
    "sequence_batching.max_sequence_idle_microseconds": Parameter(
        "int", None, "A sequence without a request for this long is dropped.", low=0
    ),
    "sequence_batching.direct.max_queue_delay_microseconds": Parameter(
        "int", None, "Longest wait for the other sequences of the batch.", low=0
    ),
    "sequence_batching.direct.minimum_slot_utilization": Parameter(
        "float", None, "Share of the batch's slots at which it is sent off.", low=0, high=1
    ),
    "sequence_batching.oldest.max_candidate_sequences": Parameter("int", None, "Most sequences in progress.", low=1),
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
