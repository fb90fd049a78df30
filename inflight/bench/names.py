"""What benchmarks can be told to send and to compare, by name: plain data, for whoever offers it."""

from inflight.engine.config import BATCHING_TYPES
from inflight.triton.repository.layout import BASELINE

# Name of a trace: how many requests it has, and what the length of each answer is drawn from, in tokens.
TRACES = {
    "mild": (32, (8, 16, 16, 24, 32, 32, 64, 128)),
    "skewed": (48, (8, 8, 8, 8, 8, 8, 16, 16, 256)),
}
SMALL = "small"  # the file of arrivals and lengths that is the course's own
# Ways to serve the same requests; beside them the address of a Triton, or openai:URL. A batching type is that of the
# engine behind `ensemble`, which batches in flight.
IN_PROCESS, ENSEMBLE = "in-process", "ensemble"
WAYS = (IN_PROCESS, *BATCHING_TYPES, ENSEMBLE, BASELINE)
