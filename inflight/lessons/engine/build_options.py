"""Lesson 01: build options, and what follows from them before anything is built."""

from __future__ import annotations

import html

import ipywidgets

from inflight.engine import BuildConfig, Sizing
from inflight.errors import CourseError
from inflight.notebook.palette import DECODE, REQUEST
from inflight.notebook.panel import Panel, side_by_side

NONE = "none"  # stands for None, which a drop-down list takes for "nothing chosen"
NUMBERS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width", "tokens_per_block")
CHOICES = {
    "kv_cache_type": ["paged", "continuous", "disabled"],
    "dtype": ["float32", "bfloat16", "float16"],
    "quant_algo": ["auto", "W4A8", "W4A16", "W8A16", "W8A8", NONE],
    "kv_cache_quant_algo": [NONE, "INT8", "FP8"],
}


class BuildOptions(Panel):
    """A field for each build option; below them bytes and users, or why the options are refused.

    Parameters
    ----------
    sizing : Sizing
        The arithmetic of the model.
    memory_bytes : float
        Memory that weights and KV cache may take.

    Attributes
    ----------
    fields : dict of str to widget
        By the name of the option.
    result : HTML
    """

    def __init__(self, sizing: Sizing, memory_bytes: float):
        self._sizing, self._memory_bytes = sizing, memory_bytes
        default = BuildConfig()
        self.fields = {
            **{
                name: ipywidgets.BoundedIntText(getattr(default, name), min=0, max=1_000_000, description=name)
                for name in NUMBERS
            },
            **{name: ipywidgets.Dropdown(options=options, description=name) for name, options in CHOICES.items()},
        }
        self.result = ipywidgets.HTML()
        for field in self.fields.values():
            field.observe(self._update, "value")
        super().__init__([side_by_side(self.fields.values()), self.result], "Build options, and what follows from them")
        self._update()

    def __repr__(self) -> str:
        return "BuildOptions: a field for each build option; bytes, users that fit, and refusals below them."

    def _update(self, _change=None) -> None:
        values = {name: None if field.value == NONE else field.value for name, field in self.fields.items()}
        try:
            self.result.value = self._plan(BuildConfig(**values))
        except CourseError as error:
            self.result.value = (
                f'<div role="alert" style="border-left: 6px solid {REQUEST[3]}; padding: 4px 12px; line-height: 1.4">'
                f"<b>Refused.</b> {html.escape(str(error))}</div>"
            )

    def _plan(self, config: BuildConfig) -> str:
        sizing, slots, length = self._sizing, config.max_batch_size, config.max_seq_len
        user_bytes = sizing.kv_bytes_per_user(config, length)
        users = sizing.users(config, length, self._memory_bytes)
        rows = [
            ("Weights", f"{sizing.weight_bytes(config) / 1e6:,.1f} MB"),
            ("KV cache of one token", f"{sizing.kv_bytes_per_token(config):,} bytes"),
            (f"KV cache of one user, {length:,} tokens", f"{user_bytes / 1e6:,.1f} MB"),
            (f"KV cache of all {slots} slots", f"{slots * user_bytes / 1e6:,.1f} MB"),
            (f"Users that fit into {self._memory_bytes / 1e9:.1f} GB", f"{users:,}"),
        ]
        cells = "".join(
            f'<tr><td style="padding: 2px 12px">{name}</td><td style="text-align: right"><b>{value}</b></td></tr>'
            for name, value in rows
        )
        verdict = (
            "Memory is enough for every slot."
            if users >= slots
            else f"Too few for {slots} slots: users will wait with a slot free. Shorten max_seq_len or take INT8."
        )
        return (
            f'<div style="border-left: 6px solid {DECODE}; padding: 4px 12px; line-height: 1.4">'
            f'<table>{cells}</table><div style="padding: 2px 12px">{verdict}</div></div>'
        )
