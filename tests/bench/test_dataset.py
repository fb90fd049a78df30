"""Datasets: how they are read, written, found and cut; and the one that ships with the course."""

import json
import re
import statistics

import numpy as np
import pytest

from inflight.bench import dataset, workload
from inflight.bench.dataset import Record
from inflight.bench.workload import from_dataset
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError

README = dataset.MINI_CNN_EVAL.with_name("README.md")
RECORD = {"input": "The bridge is open.", "instruction": "Summarize:", "output": "A bridge opened today."}


@pytest.fixture(scope="module")
def text(course_engine):
    return load_tokenizer(course_engine)


def as_engine_gets_it(text, prompt: str) -> int:
    return len(text.encode(text.chat(prompt)))


def save(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


# Datasets -------------------------------------------------------------------------------------------------------------


def test_prompt_and_answer_length_are_those_of_the_classic_client():
    record = Record(**RECORD)
    assert record.prompt == "The bridge is open. Summarize:"
    assert record.output_len == 5  # int(4 words × 1.3)
    assert Record("a", "b", "c").output_len == 1


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("not JSON at all", "is not JSON (Expecting value: line 1"),
        ({"input": "a"}, "is not a JSON list of records"),
        ([], "has no records"),
        ([RECORD, "text"], "Record 2 of the dataset"),
        ([RECORD, "text"], "is not an object with input, instruction and output"),
        ([{"input": "a", "instruction": "b"}], "has no output, or one that is not text: correct or remove it."),
        ([{**RECORD, "output": " \n"}], "has no output"),
    ],
)
def test_a_broken_dataset_is_one_sentence(tmp_path, content, complaint):
    path = save(tmp_path / "broken.json", content)
    with pytest.raises(CourseError) as error:
        dataset.read_dataset(path)
    assert complaint in str(error.value) and path in str(error.value) and "\n" not in str(error.value)


def test_requests_of_a_dataset(text):
    records = dataset.read_dataset()[:20]
    requests = from_dataset(records, text)
    assert [request.text for request in requests] == [record.prompt for record in records]
    assert [request.max_tokens for request in requests] == [record.output_len for record in records]
    assert all(request.input_len == as_engine_gets_it(text, request.text) for request in requests)
    assert {request.at_s for request in requests} == {0.0}


def test_prompts_that_are_too_long_are_dropped(text):
    records = dataset.read_dataset()[:20]
    lengths = [as_engine_gets_it(text, record.prompt) for record in records]
    limit = sorted(lengths)[11]
    requests = from_dataset(records, text, max_input_len=limit)
    assert [request.input_len for request in requests] == [length for length in lengths if length <= limit]


def test_a_selection_that_leaves_nothing_is_one_sentence(text):
    records = dataset.read_dataset()[:5]
    shortest = min(as_engine_gets_it(text, record.prompt) for record in records)
    with pytest.raises(CourseError, match=rf"longer than max_input_len \(40 tokens\); the shortest has {shortest}"):
        from_dataset(records, text, max_input_len=40)


# The shipped dataset --------------------------------------------------------------------------------------------------


def test_the_shipped_dataset_has_mlperfs_layout_and_varied_lengths():
    records = dataset.read_dataset()
    assert len(records) == 100 and len({record.input for record in records}) == 100
    assert {record.instruction for record in records} == {"Summarize the following news article:"}
    words = [len(record.output.split()) for record in records]
    assert min(words) >= 15 and max(words) <= 170 and statistics.stdev(words) > 15
    assert all(record.input.isascii() and record.input.endswith(".") for record in records)


def test_the_readme_states_the_lengths_of_the_shipped_dataset(text):
    readme = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", readme, re.MULTILINE)
    stated = {measure: [int(number) for number in numbers] for measure, *numbers in rows}
    records = dataset.read_dataset()
    measured = {
        "article, words": [len(record.input.split()) for record in records],
        "article, tokens": [len(text.encode(record.input)) for record in records],
        "prompt, tokens": [workload.input_len(record.prompt, text) for record in records],
        "summary, words": [len(record.output.split()) for record in records],
        "summary, tokens": [len(text.encode(record.output)) for record in records],
        "answer asked for, tokens": [record.output_len for record in records],
    }
    shares = {name: [np.mean(row), *np.quantile(row, [0.1, 0.5, 0.9])] for name, row in measured.items()}
    assert stated == {name: [round(figure) for figure in row] for name, row in shares.items()}
