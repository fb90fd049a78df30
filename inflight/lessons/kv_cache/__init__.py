"""What becomes of requests when the cache is full: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["promised_blocks"],
    submod_attrs={
        "dashboard": ["board"],
        "charts": ["first_tokens", "kv_blocks", "kv_blocks_summary", "policy_gains", "token_gaps"],
        "explorables": ["policies_on_paper", "replay"],
        "long_prompt": ["prompts_that_fit", "send_while_others_read"],
    },
)
