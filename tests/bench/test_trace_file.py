"""Files of arrivals and lengths: the one that ships, those like Azure's, and those that are not right."""

import pytest

from inflight.bench import plan, trace_file
from inflight.bench.workload import input_len
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def save(folder, *lines):
    path = folder / "trace.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "moments",
    [
        ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.9305900", "2023-11-16 18:15:48.6805900"],
        ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.259930+00:00", "2024-05-10 00:00:02.009930+00:00"],
        ["2024-05-10 23:59:59+00:00", "2024-05-10 23:59:59.25+00:00", "2024-05-11 00:00:01+00:00"],
        ["0.5", "0.75", "2.5"],
    ],
)
def test_times_are_dates_in_the_forms_of_the_public_traces_or_seconds(tmp_path, moments):
    found = trace_file.read(save(tmp_path, *(f"{at},{40 + n},{7 + n}" for n, at in enumerate(moments))))
    assert found.times == pytest.approx([0, 0.25, 2])
    assert (found.input_lens, found.output_lens) == ([40, 41, 42], [7, 8, 9])


def test_requests_without_an_answer_are_left_out(tmp_path):
    found = trace_file.read(save(tmp_path, "1,40,0", "3,41,7", "4,42,0", "5,43,8"))
    assert (found.times, found.input_lens, found.output_lens) == ([0, 2], [41, 43], [7, 8])


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["1,40,7", "3,40,7", "2.5,40,7"], "The times of the trace {} run backwards in line 4, by 0.5 s: sort it by"),
        (["2024-05-10 01:00:00,40,7", "2024-05-09 01:00:00,40,7"], "run backwards in line 3, by 8.64e+04 s"),
        (
            ["1,-40,7"],
            "In line 2 of the trace {}, ContextTokens is -40, which is not a whole number from 1 to",
        ),
        (["1,40,7", "2,40,-1"], "In line 3 of the trace {}, GeneratedTokens is -1, which is not a whole number from 0"),
        (["1,99999999999,7"], "ContextTokens is 99999999999, which is not a whole number"),
        (["1,40.5,7"], "ContextTokens is 40.5, which is not a whole number"),
        (["1,nan,7"], "ContextTokens is nan"),
        (["1,forty,7"], "ContextTokens is forty"),
        (["soon,40,7"], "TIMESTAMP is 'soon', which is neither a date with a time of day nor a number"),
        ([",40,7"], "TIMESTAMP is 'nan', which is neither"),
        (["inf,40,7"], "In line 2 of the trace {}, TIMESTAMP is no moment"),
        (["0,40,7", "9000000,40,7"], "lasts 104 days, and 31 are the most"),
        ([], "The trace {} has no request"),
        (["1,40,0"], "The trace {} has no request with an answer"),
        (["1,40,7,8,9"], "The trace {} is not a CSV file"),
    ],
)
def test_a_broken_trace_is_one_sentence(tmp_path, lines, complaint):
    path = save(tmp_path, *lines)
    with pytest.raises(CourseError) as refused:
        trace_file.read(path)
    assert complaint.format(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_public_trace_is_found_by_its_name_once_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    with pytest.raises(CourseError, match="download AzureLLMInferenceTrace_conv.csv from https://github.com/Azure"):
        trace_file.find("azure-conv")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "AzureLLMInferenceTrace_conv.csv").write_text(f"{HEADER}\n1,40,7\n")
    assert trace_file.read(trace_file.find("azure-conv")).input_lens == [40]


def test_requests_that_do_not_fit_are_left_out_or_lengthened_and_told(tmp_path, small_engine):
    text, told = load_tokenizer(small_engine), []
    shortest = input_len("a b", text)
    path = save(tmp_path, "5,2,7", "6,2000,7", "7,80,7", "8,80,5000")
    build = BuildConfig(max_input_len=100, max_seq_len=200)
    made = plan.from_trace(str(path), None, text, build, told.append)
    assert [(one.at_s, one.input_len, one.max_tokens) for one in made] == [(0, shortest, 7), (2, 80, 7)]
    assert [input_len(one.text, text) for one in made] == [shortest, 80]
    assert "2 of 4 requests" in told[0] and f"1 prompts of {path} are shorter" in told[1]
    with pytest.raises(CourseError, match="has 2 requests and --requests asks for 3"):
        plan.from_trace(str(path), 3, text, build)
    with pytest.raises(CourseError, match="No request of the trace .* fits into the engine"):
        plan.from_trace(str(save(tmp_path, "1,900,9")), None, text, build)
