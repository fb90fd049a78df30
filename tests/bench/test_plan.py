"""What a load sends and to whom, as it is planned before anything is sent."""

import pytest

from inflight.bench import plan, result_files
from inflight.bench.workload import TimedRequest
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError

REQUESTS = [TimedRequest("Hello", max_tokens, 0.0, 10) for max_tokens in (5, 6, 7, 8)]


def test_the_first_requests_or_all():
    assert plan.first(REQUESTS, None, "It") == REQUESTS
    assert plan.first(REQUESTS, 3, "It") == REQUESTS[:3]
    for number in (0, 5):
        with pytest.raises(CourseError, match=f"It has 4 requests and --requests asks for {number}: .* from 1 to 4"):
            plan.first(REQUESTS, number, "It")


def test_lengths_as_they_are_or_drawn():
    assert plan.with_lengths(REQUESTS, "dataset") == REQUESTS
    drawn = plan.with_lengths(REQUESTS, "histogram:8=1", seed=1)
    assert [request.max_tokens for request in drawn] == [8, 8, 8, 8]
    assert [request.text for request in drawn] == ["Hello"] * 4
    assert plan.with_lengths(REQUESTS, "normal:60,20", 1) == plan.with_lengths(REQUESTS, "normal:60,20", 1)
    for spec in ("uniform:1,2", "normal:60", "histogram:8"):
        with pytest.raises(CourseError, match=f"--output-lengths {spec}: write dataset, normal:MEAN,STDEV"):
            plan.with_lengths(REQUESTS, spec)


@pytest.mark.parametrize(
    "name, rate, recorded, arrivals",
    [
        (None, None, None, "all-at-once"),
        (None, None, "run.csv", "recorded"),
        ("constant", 4.0, None, "constant"),
        ("poisson", 4.0, None, "poisson"),
    ],
)
def test_options_that_go_together_name_an_arrival_process(name, rate, recorded, arrivals):
    assert plan.arrivals(name, rate, recorded, "dataset") == arrivals


def test_requests_come_at_the_times_of_their_arrival_process():
    at_s = [request.at_s for request in plan.with_arrivals(REQUESTS, "constant", rate=4.0)]
    assert at_s == pytest.approx([0, 0.25, 0.5, 0.75])
    assert {request.at_s for request in plan.with_arrivals(REQUESTS, "all-at-once")} == {0}
    assert plan.with_arrivals(REQUESTS, "poisson", 4.0, 3) == plan.with_arrivals(REQUESTS, "poisson", 4.0, 3)


def test_an_answer_that_would_be_cut_off_is_refused():
    plan.check_fit(REQUESTS, BuildConfig(max_input_len=10, max_seq_len=18))
    with pytest.raises(CourseError, match="Request 3 has 10 tokens and asks for 8 more, but .* max_seq_len is 17"):
        plan.check_fit(REQUESTS, BuildConfig(max_input_len=10, max_seq_len=17))


def test_the_warm_up_is_two_rounds_of_what_runs_at_a_time_unless_told():
    assert plan.warm_up_requests(None, BuildConfig(max_batch_size=4)) == 8
    assert plan.warm_up_requests(0, BuildConfig()) == 0
    with pytest.raises(CourseError, match="--warm-up is -1; it must be 0 or more"):
        plan.warm_up_requests(-1, BuildConfig())


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(CourseError, match="nowhere"):
        result_files.ResultFiles(csv=tmp_path / "nowhere" / "run.csv")
    files = result_files.ResultFiles(csv=tmp_path / "run.csv", perfetto=tmp_path / "run.json")
    assert str(files) == f"{tmp_path / 'run.csv'} and {tmp_path / 'run.json'}"
