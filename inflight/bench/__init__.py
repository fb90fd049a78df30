"""Benchmarks: requests sent on a time line, one row a request; ratios measured in one run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "bandwidth",
        "batch_run",
        "batches_on_paper",
        "compare",
        "compare_servers",
        "devices",
        "dynamic_batching",
        "floor",
        "gpt2_client",
        "gpt2_race",
        "gpt2_serving",
        "in_process",
        "load_generator",
        "long_prompt",
        "model_analyzer",
        "openai_server",
        "peer",
        "perf_analyzer",
        "plan",
        "quality",
        "report",
        "request_path",
        "recorded",
        "result_files",
        "sequences",
        "trace_run",
        "workload",
    ],
    submod_attrs={
        "compare": ["calibrate"],
        "sequences": ["Step"],
        "long_prompt": ["prompts_that_fit", "send_while_others_read"],
    },
)
