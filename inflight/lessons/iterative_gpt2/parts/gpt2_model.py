"""GPT-2 as an iterative model: few slots in its KV cache, and many readers."""

from inflight.lessons.iterative_gpt2 import Gpt2Model

SLOTS = 4  # texts that the cache has room for


class TritonPythonModel(Gpt2Model):
    def initialize(self, args):
        super().initialize(args)
        self.room = self.network.num_positions  # of a slot
        self.cache = self.empty_cache(SLOTS * self.room)
        self.free = list(range(SLOTS))  # slots that nobody has

    def where(self, text):
        """The position in the cache of each token of a text."""
        start = text.slot * self.room
        return range(start, start + len(text.ids))

    def with_room(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        for text in [self.texts[n] for n in self.texts if n in numbers]:
            if text.slot is None and self.free:
                text.slot = self.free.pop()
        return [number for number in numbers if self.texts[number].slot is not None]

    def forget(self, number):
        """Keep nothing more of a sequence."""
        text = self.texts.pop(number)
        if text.slot is not None:
            self.free.append(text.slot)
