"""GPT-2's layers. The caller keeps track of which token belongs to which text, and of the cache.

    network = load("gpt2-folder")
    tokens = network.next_tokens(ids, positions, last, attend)

PyTorch and transformers are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from inflight.errors import CourseError
from inflight.models import huggingface

if TYPE_CHECKING:
    import torch

Attend: TypeAlias = "Callable[[int, torch.Tensor], torch.Tensor]"

DTYPES = {"cpu": ("bfloat16", "float32"), "cuda": ("bfloat16", "float16", "float32")}  # beside "auto"
DEVICE_NAMES = {"cpu": "CPU", "cuda": "GPU"}


class Network:
    """A GPT-2's layers, for the tokens of any number of texts in one row; the caller computes attention.

    Matrices and norms treat each token by itself and need not know to which text it belongs. Only attention looks at
    other tokens, and so only attention has to know where their keys and values are.

    Parameters
    ----------
    model : transformers.GPT2LMHeadModel
        See `pretrained` and `load`.

    Attributes
    ----------
    num_layers, num_heads, head_dim : int
    num_positions : int
        Most tokens of a text.
    """

    def __init__(self, model):
        _check_options(model.config)
        body = model.transformer
        self.num_layers, self.num_heads = model.config.n_layer, model.config.n_head
        self.head_dim, self.num_positions = model.config.n_embd // model.config.n_head, model.config.n_positions
        self.embeddings, self._positions = body.wte.weight.detach(), body.wpe.weight.detach()
        self._head, self._norm = model.lm_head.weight.detach(), _pair(body.ln_f)
        self._epsilon = model.config.layer_norm_epsilon
        self._layers = [
            _Layer(
                _pair(block.ln_1),
                _turned(block.attn.c_attn),
                _turned(block.attn.c_proj),
                _pair(block.ln_2),
                _turned(block.mlp.c_fc),
                _turned(block.mlp.c_proj),
            )
            for block in body.h
        ]

    def next_tokens(self, ids: list[int], positions: list[int], last: list[int], attend: Attend) -> list[int]:
        """Run one forward pass; return the likeliest token after each text.

        Parameters
        ----------
        ids : list of int
            Tokens that go in, one text's after the other's.
        positions : list of int
            Where each stands in its own text, from 0.
        last : list of int
            Which of `ids` are the last of their texts: one for each token that is wanted.
        attend : callable
            Takes the number of a layer, and of each token its query, key and value, [tokens, 3, heads, head_dim]; gives
            what its attention finds, [tokens, heads, head_dim].

        Returns
        -------
        list of int
            As many as `last` has.
        """
        import torch

        with torch.inference_mode():
            return self.likeliest(*(torch.tensor(each) for each in (ids, positions, last)), attend).tolist()

    def likeliest(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor, attend: Attend):
        """`next_tokens` for tensors, and as a tensor."""
        from torch.nn.functional import linear

        # Not argmax, which is several times slower on a CPU in bfloat16.
        return linear(self._forward(ids, positions, last, attend), self._head).max(-1).indices

    def _forward(self, ids, positions, last, attend: Attend) -> torch.Tensor:
        """Return the hidden state of each text's last token, [texts, width]."""
        from torch.nn.functional import gelu, layer_norm, linear

        x = self.embeddings[ids] + self._positions[positions]
        for number, layer in enumerate(self._layers):
            normed = layer_norm(x, x.shape[-1:], *layer.norm_1, self._epsilon)
            projected = linear(normed, *layer.attention).view(len(x), 3, self.num_heads, self.head_dim)
            x = x + linear(attend(number, projected).flatten(1), *layer.projection)
            if number == self.num_layers - 1:
                x = x[last]  # nobody asks for the other tokens' outputs
            normed = layer_norm(x, x.shape[-1:], *layer.norm_2, self._epsilon)
            x = x + linear(gelu(linear(normed, *layer.widening), approximate="tanh"), *layer.narrowing)
        return layer_norm(x, x.shape[-1:], *self._norm, self._epsilon)


def pretrained(folder: str | Path, dtype: str, device: str):
    """The transformers model of a folder on a device, in evaluation mode.

    Raises
    ------
    CourseError
        The folder holds no GPT-2, or is damaged; the device cannot do the precision, or has no memory.
    """
    kind = device.partition(":")[0]
    if dtype == "auto":
        dtype = huggingface.best_dtype(device)
    if dtype not in DTYPES[kind]:
        raise CourseError(
            f"dtype is {dtype}, which this computer's {DEVICE_NAMES[kind]} does not compute GPT-2 in: use "
            f"{' or '.join(DTYPES[kind])}."
        )
    model = huggingface.load(folder, dtype, device)
    if model.config.model_type != "gpt2":
        raise CourseError(
            f"The checkpoint in {folder} is a {model.config.model_type!r}, not a GPT-2: name a folder with one."
        )
    return model


def load(folder: str | Path) -> Network:
    """The network of a GPT-2's folder, in float32 on the CPU.

    Raises
    ------
    CourseError
        The folder holds no GPT-2, or one with options that the course does not compute, or is damaged.
    """
    return Network(pretrained(folder, "float32", "cpu"))


@dataclass
class _Layer:
    """A block: weight and bias of its norms and of its matrices, [out, in]."""

    norm_1: tuple
    attention: tuple
    projection: tuple
    norm_2: tuple
    widening: tuple
    narrowing: tuple


def _pair(module) -> tuple:
    return module.weight.detach(), module.bias.detach()


def _turned(module) -> tuple:
    """Transformers' Conv1D, whose weight is [in, out]."""
    return module.weight.detach().T.contiguous(), module.bias.detach()


def _check_options(config) -> None:
    """Refuse what `Network` would compute wrongly."""
    wanted = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }
    for name, allowed in wanted.items():
        if getattr(config, name) not in allowed:
            raise CourseError(
                f"The checkpoint's config.json has {name} = {getattr(config, name)!r}; the course computes "
                f"GPT-2 with {allowed[0]!r} only: use another checkpoint, or simple-gpt2."
            )
