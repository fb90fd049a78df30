"""What benchmarks can be told to send, to ask and to compare, by name: plain data, for whoever offers it."""

from inflight.engine.config import BATCHING_TYPES
from inflight.triton.repository.layout import BASELINE

# Name of a trace: how many requests it has, and what the length of each answer is drawn from, in tokens.
TRACES = {
    "mild": (32, (8, 16, 16, 24, 32, 32, 64, 128)),
    "skewed": (48, (8, 8, 8, 8, 8, 8, 16, 16, 256)),
}
ARRIVALS = ("all-at-once", "constant", "poisson", "recorded", "bursts", "day", "trace")
RATED = ("constant", "poisson", "bursts", "day")  # that need a rate; a trace may be given one
# Name of a file of arrivals and lengths: its file, in assets/datasets or in the cache's folder `traces`.
TRACE_FILES = {
    "small": "llm_trace_small.csv",
    "azure-code": "AzureLLMInferenceTrace_code.csv",
    "azure-conv": "AzureLLMInferenceTrace_conv.csv",
}
APIS = ("auto", "triton", "openai")  # how a running server is asked
MOST_UNDER_WAY = 512  # threads of a load without a limit of its own
MODELS = ("ensemble", BASELINE)  # text models that can be compared
WAYS = (*BATCHING_TYPES, *MODELS)  # a batching type is that of the engine behind `ensemble`
