"""Turns the tokens of an answer into text as they come: whole characters, up to a stop string.

    text = Detokenizer(tokenizer, stops=["END"])
    for response in responses:
        print(text.add(response.token_ids, response.is_final), end="")
        if text.stopped_by:
            break

Every part that turns an engine's tokens into text does it here: `postprocessing`, `llmapi`, `llama-python`, OpenAI's
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.checkpoint.tokenizer import ChatTokenizer

CONTEXT = 8  # earlier tokens decoded again with the new ones: a character may have begun in them


@dataclass
class Detokenizer:
    """Text of one answer that can be sent: it ends in no half character, nor in what may begin a stop string.

    Parameters
    ----------
    tokenizer : ChatTokenizer
    stops : sequence of str
        Stop strings, none of them empty.
    min_tokens : int
        A stop string that is complete with the first so many tokens ends nothing: it is part of the text.
    skip_special_tokens : bool
        Whether control tokens have no text.
    ids : list of int
        Tokens that came before, whose text was sent elsewhere.

    Attributes
    ----------
    ids : list of int
        All tokens so far.
    stopped_by : str or None
        The stop string that was found; the text ends before it, and later tokens are ignored.
    """

    tokenizer: ChatTokenizer
    stops: Sequence[str] = ()
    min_tokens: int = 0
    skip_special_tokens: bool = True
    ids: list[int] = field(default_factory=list)
    stopped_by: str | None = None
    _held: str = ""  # what may begin a stop string
    _exempt: int = 0  # characters of it that are the text of the first `min_tokens` tokens

    def add(self, ids: list[int], is_final: bool) -> str:
        """Return the text that may be sent after `ids` have come; `is_final`: no more will."""
        num_exempt = max(0, self.min_tokens - len(self.ids))
        text = self._held
        if num_exempt:
            text += self._decoded(ids[:num_exempt], is_final=False)
            self._exempt = len(text)
        text += self._decoded(ids[num_exempt:], is_final)
        # Where a stop string may begin so that its last character is no longer exempt.
        first = {stop: max(0, self._exempt - len(stop) + 1) for stop in self.stops}
        if places := [(place, stop) for stop in self.stops if (place := text.find(stop, first[stop])) >= 0]:
            place, self.stopped_by = min(places)
            return text[:place]
        length = len(text) - (0 if is_final else max((_begun(text, stop) for stop in self.stops), default=0))
        self._held, self._exempt = text[length:], max(0, self._exempt - length)
        return text[:length]

    def _decoded(self, ids: list[int], is_final: bool) -> str:
        new = self.tokenizer.decode_increment(self.ids[-CONTEXT:], ids, is_final, self.skip_special_tokens)
        self.ids += ids
        return new


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `stop`."""
    return next((length for length in range(len(stop) - 1, 0, -1) if text.endswith(stop[:length])), 0)
