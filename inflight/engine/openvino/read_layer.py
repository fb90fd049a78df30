"""Finds the main operations of a layer in a Llama's graph.

layer = read_layer(to_graph(checkpoint.path, folder), 1)
layer.steps[1]              # Step(name="query", after=("norm 1",), matrix=(576, 576))
layer.num_operations        # all of them: most unpack weights, reshape or turn

The graph is as `steps.to_graph` gives it: there a layer ends with an addition that is called after its number.
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino as ov

from inflight.engine.openvino.layers import INPUT, Layer, Step

END = "model.layers.self_attn.add1.layer{}"  # the name of the last operation of a layer
MAIN = ("MatMul", "ReadValue", "ScaledDotProductAttention", "Swish")  # and some of Add and Multiply


def read_layer(graph: ov.Model, number: int) -> Layer:
    """Layer `number` of `graph`, from 1 on: what only the first one does belongs to the whole model.

    Raises
    ------
    ValueError
        The graph has no such layer.
    """
    nodes = {node.get_friendly_name(): node for node in graph.get_ordered_ops()}
    if number < 1 or END.format(number) not in nodes:
        raise ValueError(f"the graph has no layer {number} after another one")
    begin, end = nodes[END.format(number - 1)], nodes[END.format(number)]
    earlier = _leading_to(begin)
    own = [name for name in _leading_to(end, stop=begin) if name not in earlier]
    main = {name: nodes[name] for name in nodes if name in own and _is_main(nodes[name])}
    after = {name: _sources(_inputs(node), set(main), begin) for name, node in main.items()}
    called = _called(main, after, begin)
    steps = tuple(
        Step(called[name], tuple(called[source] for source in after[name]), _matrix(node))
        for name, node in main.items()
    )
    return Layer(steps, sum(nodes[name].get_type_name() != "Constant" for name in own))


def _inputs(node: ov.Node) -> Iterable[ov.Node]:
    return (value.get_node() for value in node.input_values())


def _types(nodes: Iterable[ov.Node]) -> list[str]:
    return [node.get_type_name() for node in nodes]


def _leading_to(end: ov.Node, stop: ov.Node | None = None) -> set[str]:
    """Names of `end` and of all that it is computed from; of `stop`, and what that is computed from, nothing."""
    found, ahead = set(), [end]
    beyond = stop.get_friendly_name() if stop is not None else None
    while ahead:
        node = ahead.pop()
        name = node.get_friendly_name()
        if name != beyond and name not in found:
            found.add(name)
            ahead += _inputs(node)
    return found


def _is_main(node: ov.Node) -> bool:
    kind, sources = node.get_type_name(), _types(_inputs(node))
    if kind == "Add":  # a rotation of positions, or what a product adds to the layer's input
        return sources == ["Multiply", "Multiply"] or "MatMul" in sources
    if kind == "Multiply":  # the end of a norm, or what the feed-forward part multiplies
        return sources in (["Multiply", "Convert"], ["Swish", "MatMul"])
    return kind in MAIN


def _sources(starts: Iterable[ov.Node], main: set[str], begin: ov.Node) -> list[str]:
    """Names of the main operations, or of the layer's `begin`, that lead to `starts` with no other between them."""
    ends = main | {begin.get_friendly_name()}
    found: dict[str, None] = {}  # in the order in which they are met
    seen, ahead = set(), list(starts)
    while ahead:
        source = ahead.pop(0)
        name = source.get_friendly_name()
        if name in ends:
            found[name] = None
        elif name not in seen:
            seen.add(name)
            ahead += _inputs(source)
    return list(found)


def _called(main: dict[str, ov.Node], after: dict[str, list[str]], begin: ov.Node) -> dict[str, str]:
    """What each main operation is called, by where its input comes from and where its output goes."""
    kinds = {name: node.get_type_name() for name, node in main.items()}
    goes_to = {name: [kinds[user] for user in main if name in after[user]] for name in main}
    comes_from = {name: [kinds.get(source) for source in after[name]] for name in main}
    [attention] = [name for name in main if kinds[name] == "ScaledDotProductAttention"]
    called = {begin.get_friendly_name(): INPUT, attention: "attention"}
    for word, source in zip(("query", "key", "value"), _inputs(main[attention])):
        for name in _sources([source], set(main), begin):
            if kinds[name] == "Add":
                called[name] = f"turned {word}"
                [name] = after[name]
            called[name] = f"past {word}s" if kinds[name] == "ReadValue" else word
    for name, kind in kinds.items():
        if name in called:
            continue
        if kind == "MatMul":
            last = "output" if "ScaledDotProductAttention" in comes_from[name] else "down"
            called[name] = {"Swish": "gate", "Multiply": "up", "Add": last}[goes_to[name][0]]
        elif kind == "Multiply" and "Swish" not in comes_from[name]:
            called[name] = f"norm {1 + sum(word.startswith('norm') for word in called.values())}"
        elif kind == "Add":
            called[name] = f"sum {1 + sum(word.startswith('sum') for word in called.values())}"
        else:
            called[name] = {"Swish": "SiLU", "Multiply": "gated"}[kind]
    return called


def _matrix(node: ov.Node) -> tuple[int, ...]:
    if node.get_type_name() != "MatMul":
        return ()
    return tuple(node.input_value(1).get_shape())
