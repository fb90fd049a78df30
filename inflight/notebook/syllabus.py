"""The lessons of the course, built and planned, in the order in which they are read."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd

from inflight.paths import COURSE


@dataclass(frozen=True)
class Lesson:
    """One notebook: its number, the topic in its file's name, the part of the course it belongs to."""

    number: str
    topic: str
    part: str
    title: str
    question: str
    minutes: int


LESSONS = (
    Lesson("00", "start_here", "Serve a model", "Start here", "What happens between Enter and the first word?", 10),
    Lesson(
        "01", "engine", "Serve a model", "Build the engine", "What is in an engine that is not in a checkpoint?", 25
    ),
    Lesson(
        "02",
        "repository",
        "Serve a model",
        "Assemble the repository",
        "How does Triton know what to load, and what flows where?",
        25,
    ),
    Lesson("03", "serve", "Serve a model", "Serve and query", "Why does the same answer feel fast or slow?", 30),
    Lesson(
        "04",
        "batching",
        "Share it among many",
        "Static against in-flight batching",
        "Eight seats, forty-eight guests: when may the next one sit down?",
        35,
    ),
    Lesson(
        "05",
        "kv_cache",
        "Share it among many",
        "Policies and the KV cache",
        "The plates run out before the seats do: what then?",
        35,
    ),
    Lesson(
        "06",
        "batchers",
        "Share it among many",
        "Triton's own batchers",
        "Who decides what goes into a batch: the client, Triton, or the model?",
        35,
    ),
    Lesson(
        "07",
        "iterative_gpt2",
        "Look underneath",
        "Iterative GPT-2",
        "Can Triton do in-flight batching with no LLM engine at all?",
        35,
    ),
    Lesson("08", "capstone", "Look underneath", "Capstone", "P99 of the first token under 400 ms, in this memory?", 60),
)


def table() -> pd.DataFrame:
    """One row a lesson, with `link`: the notebook's name beside the other notebooks, blank while it is planned."""
    rows = pd.DataFrame([asdict(lesson) for lesson in LESSONS])
    names = [f"{lesson.number}_{lesson.topic}" for lesson in LESSONS]
    rows["link"] = [f"{name}.ipynb" if (COURSE / "lessons" / name).is_dir() else "" for name in names]
    return rows
