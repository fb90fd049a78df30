from . import compare, dataset, load, openai, quality, report, targets, trace_run, turns, workload

__all__ = ["compare", "dataset", "load", "openai", "quality", "report", "targets", "trace_run", "turns", "workload"]
