"""Tokens of an answer become text as they come, up to a stop string."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.checkpoint.tokenizer import ChatTokenizer

CONTEXT = 8  # tokens before the new ones, in which a character may have begun


@dataclass
class Text:
    """Tokens become text that can be sent: whole characters, and nothing that may be the beginning of a stop string.

    Attributes
    ----------
    stopped_by : str or None
        The stop string that has come: it is no part of the text, and what comes after it is nothing any more.
    """

    tokenizer: ChatTokenizer
    stops: list[str]
    ids: list[int] = field(default_factory=list)
    stopped_by: str | None = None
    _held: str = ""

    def add(self, ids: list[int], is_final: bool) -> str:
        """What may be sent after `ids` have come."""
        text = self._held + self.tokenizer.decode_increment(self.ids[-CONTEXT:], ids, is_final)
        self.ids += ids
        places = [(place, stop) for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.stopped_by = min(places)
            return text[:place]
        held = 0 if is_final else max((_begun(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    return next((length for length in range(len(stop) - 1, 0, -1) if text.endswith(stop[:length])), 0)
