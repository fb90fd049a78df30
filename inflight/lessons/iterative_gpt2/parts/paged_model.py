"""GPT-2 as an iterative model: its KV cache in blocks, and a block table for each reader."""

from inflight.lessons.iterative_gpt2 import Gpt2Model

BLOCKS, BLOCK = 16, 16  # so many blocks, each for so many tokens


class TritonPythonModel(Gpt2Model):
    def initialize(self, args):
        super().initialize(args)
        self.cache = self.empty_cache(BLOCKS * BLOCK)
        self.free = list(range(BLOCKS))  # blocks that nobody has

    def with_room(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        for text in [self.texts[number] for number in self.texts if number in numbers]:
            needed = -(-text.length // BLOCK)
            if text.blocks:
                continue
            if needed > len(self.free):
                break  # a shorter one that came later would overtake it for ever
            text.blocks = [self.free.pop() for _ in range(needed)]
        return [number for number in numbers if self.texts[number].blocks]

    def where(self, text):
        """The position in the cache of each token of a text."""
        return [
            text.blocks[token // BLOCK] * BLOCK + token % BLOCK
            for token in range(len(text.ids))
        ]

    def forget(self, number):
        """Keep nothing more of a sequence."""
        self.free += self.texts.pop(number).blocks
