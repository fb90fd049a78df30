"""A layer of a Llama, told in its main operations: what `read_layer` finds in a graph."""

from __future__ import annotations

from dataclasses import dataclass

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
