"""The course's pictures, one module a lesson.

A figure function takes DataFrames and returns a plotly figure; `show(figure, alt)` puts it into a notebook as plotly
(JupyterLab, the pages of `make course`) and as words. The notebooks that are read on the web get a static picture
besides when an author builds them.
"""

from inflight.notebook.charts.batchers import (
    batch_cost,
    batches,
    batches_summary,
    queue_outcomes,
    sequence_lanes,
    sequence_places,
)
from inflight.notebook.charts.batching import (
    against_the_baseline,
    iteration_cost,
    slot_map,
    slot_map_summary,
    who_pays,
    who_pays_summary,
)
from inflight.notebook.charts.capstone import pareto, pareto_summary
from inflight.notebook.charts.display import show, table
from inflight.notebook.charts.engine import (
    builds,
    builds_summary,
    engine_bytes,
    engine_bytes_summary,
    layer,
    layer_summary,
)
from inflight.notebook.charts.iterative_gpt2 import (
    cost_of_a_token,
    cost_of_a_token_summary,
    forward_passes,
    forward_passes_summary,
    race,
    race_summary,
)
from inflight.notebook.charts.kv_cache import first_tokens, kv_blocks, kv_blocks_summary, policy_gains, token_gaps
from inflight.notebook.charts.lab_gpu import lab_results, lab_results_summary
from inflight.notebook.charts.replay import replay, replay_summary
from inflight.notebook.charts.repository import repository_map
from inflight.notebook.charts.serve import token_timeline
from inflight.notebook.charts.start_here import course_map, request_path, request_path_summary

__all__ = [
    "against_the_baseline",
    "batch_cost",
    "batches",
    "batches_summary",
    "builds",
    "builds_summary",
    "cost_of_a_token",
    "cost_of_a_token_summary",
    "course_map",
    "engine_bytes",
    "engine_bytes_summary",
    "first_tokens",
    "forward_passes",
    "forward_passes_summary",
    "iteration_cost",
    "kv_blocks",
    "kv_blocks_summary",
    "lab_results",
    "lab_results_summary",
    "layer",
    "layer_summary",
    "pareto",
    "pareto_summary",
    "policy_gains",
    "queue_outcomes",
    "race",
    "race_summary",
    "replay",
    "replay_summary",
    "repository_map",
    "request_path",
    "request_path_summary",
    "sequence_lanes",
    "sequence_places",
    "show",
    "slot_map",
    "slot_map_summary",
    "table",
    "token_gaps",
    "token_timeline",
    "who_pays",
    "who_pays_summary",
]
