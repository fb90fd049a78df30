"""Options of what a load sends and when, which several benchmarks share."""

from __future__ import annotations

import typer

from inflight.bench.names import APIS, TRACE_FILES

API = typer.Option(help=f"How the server at --url is asked: {', '.join(APIS)}.")
CV = typer.Option(help="Of bursts: standard deviation of the gaps over their mean; 1 is poisson.")
DAY_S = typer.Option(help="Of day: seconds that a day takes.")
DAY_SWING = typer.Option(help="Of day: from 0, no curve, to 1, nobody at night and twice the rate at the peak.")
TRACE = typer.Option(
    help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens, as Azure's public traces have them, or "
    f"{', '.join(TRACE_FILES)}."
)
LET_END = typer.Option("--let-end", help="Let answers end by themselves; their lengths are the most then.")
SYSTEM_PROMPT = typer.Option(help="Tokens of a text that all prompts begin with.")
TURNS = typer.Option(help="Requests of a conversation, each of which holds all that came before it.")
THINK_S = typer.Option(help="Seconds between an answer and the next turn.")
OBJECTIVE = typer.Option(help="Limits in milliseconds for an answer that counts: ttft=500,itl=40,latency=3000.")
SET = typer.Option(
    "--set", metavar="NAME=VALUE", help="Variable of the templates, for the server for the occasion; several times."
)
