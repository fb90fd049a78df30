"""What Triton has to know of a model that gives a token a call: the frame of lesson 07."""

TEXT = """name: "{name}"
backend: "python"
max_batch_size: 8
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
output [ {{ name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU }} ]
sequence_batching {{
  iterative_sequence: true
  direct {{ }}
  max_sequence_idle_microseconds: 60000000
  control_input [
    {{ name: "number"
      control [ {{ kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 }} ] }},
    {{ name: "start"
      control [ {{ kind: CONTROL_SEQUENCE_START  fp32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "ready"
      control [ {{ kind: CONTROL_SEQUENCE_READY  fp32_false_true: [ 0, 1 ] }} ] }}
  ]
}}
"""


def config(name: str, **parameters: object) -> str:
    """The `config.pbtxt` of an iterative GPT-2 of this name, with these parameters."""
    lines = [
        f'parameters {{ key: "{key}"  value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    ]
    return TEXT.format(name=name) + "".join(lines)
