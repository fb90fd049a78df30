"""A layer of a Llama, told in its main operations.

layer = read_layer(to_graph(checkpoint.path, folder), 1)
layer.steps[1]              # Step(name="query", after=("norm 1",), matrix=(576, 576))
layer.num_operations        # all of them: most unpack weights, reshape or turn

Nothing here loads OpenVINO: a picture of a layer needs none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

INPUT = "input"  # what a layer begins with: the output of the one before


@dataclass(frozen=True)
class Step:
    """A main operation of a layer.

    Attributes
    ----------
    name : str
        As "query" or "attention"; no two of a layer are called the same.
    after : tuple of str
        The main operations that its input comes from; "input" is what the layer begins with.
    matrix : tuple of int
        Rows and columns of its weights; empty where it has none.
    """

    name: str
    after: tuple[str, ...]
    matrix: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layer:
    """The main operations of a layer in the order of computation, and how many it has in all, without constants."""

    steps: tuple[Step, ...]
    num_operations: int


STEPS = (
    Step("norm 1", (INPUT,)),
    Step("query", ("norm 1",)),
    Step("turned query", ("query",)),
    Step("past keys", ()),
    Step("key", ("norm 1",)),
    Step("turned key", ("key",)),
    Step("past values", ()),
    Step("value", ("norm 1",)),
    Step("attention", ("turned query", "turned key", "past keys", "past values", "value")),
    Step("output", ("attention",)),
    Step("sum 1", (INPUT, "output")),
    Step("norm 2", ("sum 1",)),
    Step("gate", ("norm 2",)),
    Step("SiLU", ("gate",)),
    Step("up", ("norm 2",)),
    Step("gated", ("SiLU", "up")),
    Step("down", ("gated",)),
    Step("sum 2", ("sum 1", "down")),
)
# What each of them is in the graph, but for norms and rotations, which are several operations each.
TYPES = {
    **dict.fromkeys(("query", "key", "value", "output", "gate", "up", "down"), "MatMul"),
    **dict.fromkeys(("past keys", "past values"), "ReadValue"),
    "attention": "ScaledDotProductAttention",
    "SiLU": "Swish",
}
END = "model.layers.self_attn.add1.layer{}"  # what OpenVINO's reader calls the last operation of a layer


def read_layer(graph, number: int) -> Layer:
    """Layer `number` of a graph as `steps.to_graph` gives it: one between two others, which share nothing with it.

    Raises
    ------
    ValueError
        The graph has no such layer, or another order of operations than a Llama's.
    """
    nodes = [node for node in graph.get_ordered_ops() if node.get_type_name() != "Constant"]
    names = [node.get_friendly_name() for node in nodes]
    if not {END.format(number - 1), END.format(number), END.format(number + 1)} <= set(names):
        raise ValueError(f"the graph has no layer {number} between two others")
    own = nodes[names.index(END.format(number - 1)) + 1 : names.index(END.format(number)) + 1]
    found = [node for node in own if node.get_type_name() in set(TYPES.values())]
    if [node.get_type_name() for node in found] != [TYPES[step.name] for step in STEPS if step.name in TYPES]:
        raise ValueError(f"layer {number} of the graph is not a Llama's")
    products = (node for node in found if node.get_type_name() == "MatMul")
    steps = (
        replace(step, matrix=tuple(next(products).input_value(1).get_shape()))
        if TYPES.get(step.name) == "MatMul"
        else step
        for step in STEPS
    )
    return Layer(tuple(steps), len(own))
