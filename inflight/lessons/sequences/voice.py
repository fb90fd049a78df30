"""A network with a state, for pieces of sound: Silero's voice activity detector.

    scores, states = Voice()(frames, np.zeros((len(frames), Voice.size)))       # [n, 512] of sound at 16 kHz

Its weights, 1.2 MB, and where they are from: `assets/checkpoints/silero-vad`.
"""

import wave
from typing import NamedTuple

import numpy as np

from inflight.paths import ASSETS

FOLDER = ASSETS / "checkpoints" / "silero-vad"
FRAME = 512  # samples that go in at a time, 32 ms
BEFORE, WIDTH, BINS = 64, 128, 129  # samples before a frame that it also looks at; of the LSTM; frequencies


class Piece(NamedTuple):
    """What one request brings: whether its stream begins and ends with it, and samples, any number of them."""

    start: bool
    end: bool
    sound: np.ndarray


def two_lines() -> np.ndarray:
    """Sound of two telephone lines, on each of which somebody says a sentence: [2, frames, FRAME]."""
    with wave.open(str(FOLDER / "two_lines.wav")) as file:
        samples = np.frombuffer(file.readframes(-1), np.int16).reshape(-1, 2)
    return (samples.T / 32768).astype(np.float32).reshape(2, -1, FRAME)


class Voice:
    """Says of each frame how likely somebody speaks in it, and what to keep of its stream for the next one."""

    size = 2 * WIDTH + BEFORE  # numbers of a state; zeros, where a stream begins

    def __init__(self):
        from safetensors.torch import load_file

        self._weights = load_file(FOLDER / "model.safetensors")

    def __call__(self, frames: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores from 0 to 1 [n], and new states [n, size], of frames [n, FRAME] and states [n, size]."""
        import torch
        from torch.nn.functional import conv1d, pad

        weights = self._weights
        given = torch.tensor(np.concatenate([states, frames], 1), dtype=torch.float32)
        hidden, sound = given[:, : 2 * WIDTH].chunk(2, 1), given[:, 2 * WIDTH :]
        with torch.inference_mode():
            spectrum = conv1d(pad(sound[:, None], (0, BEFORE), "reflect"), weights["stft.weight"], stride=128)
            x = torch.hypot(spectrum[:, :BINS], spectrum[:, BINS:])
            for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)):
                x = conv1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding=1).relu()
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            hidden = torch.lstm_cell(x[..., 0], hidden, *(weights[f"lstm.{name}"] for name in names))
            score = conv1d(hidden[0][..., None].relu(), weights["out.weight"], weights["out.bias"])
            state = torch.cat([*hidden, sound[:, -BEFORE:]], 1)
        return score.sigmoid()[:, 0, 0].numpy(), state.numpy()
