"""The chat service of lesson 09: its contract, and how it is deployed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "contract": ["BIAS", "LECTURE", "QUALITY", "SHARE", "SHARING", "SLOTS", "Contract", "contract_for", "drawn_for",
                     "in_time", "tally"],
        "deployment": ["AIPERF_RUN", "BYTES_PER_TOKEN", "KNOBS", "MIB", "bring_in", "configs", "engine_of", "measure",
                       "rehearse", "tokenizer", "with_ids"],
    },
)  # fmt: skip
