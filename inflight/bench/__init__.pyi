from . import compare, dataset, load, quality, report, senders, targets, trace_run, turns, workload

__all__ = ["compare", "dataset", "load", "quality", "report", "senders", "targets", "trace_run", "turns", "workload"]
