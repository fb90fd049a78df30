"""What the stand-ins of a pipeline's models answer. Each mistake in an ensemble's maps shows in it."""

import numpy as np

INT32, FP32 = np.int32, np.float32


def prompt_ids(text):
    """Token ids of a prompt: its bytes."""
    return list(text.encode("utf-8"))


def answer_ids(ids, most):
    """The answer to a prompt: the last of its token ids, how many follows from the prompt; at most `most`."""
    return ids[-(1 + sum(ids) % max(1, most)) :]


def answer_text(ids):
    """The text of an answer: its token ids as numbers."""
    return " ".join(map(str, ids))


def preprocessing(given):
    ids = prompt_ids(given["QUERY"].item().decode("utf-8"))
    return {
        "INPUT_ID": ([ids], INT32),
        "REQUEST_INPUT_LEN": ([[len(ids)]], INT32),
        "BAD_WORDS_IDS": ([[[0], [-1]]], INT32),
        "STOP_WORDS_IDS": ([[[0], [-1]]], INT32),
        "REQUEST_OUTPUT_LEN": (given["REQUEST_OUTPUT_LEN"], INT32),
        "OUT_END_ID": ([[0]], INT32),
        "OUT_PAD_ID": ([[0]], INT32),
        "DECODER_INPUT_ID": ([[0]], INT32),
        "REQUEST_DECODER_INPUT_LEN": ([[1]], INT32),
    }


def tensorrt_llm(given):
    ids = given["input_ids"][0][: given["input_lengths"].item()].tolist()
    answer = answer_ids(ids, given["request_output_len"].item())
    return {
        "output_ids": ([[answer]], INT32),
        "sequence_length": ([[len(answer)]], INT32),
        "cum_log_probs": ([[0]], FP32),
        "output_log_probs": ([[[0] * len(answer)]], FP32),
        "batch_index": ([[0]], INT32),
        "sequence_index": ([[0]], INT32),
        "preceding_ids": ([[-1] * 8], INT32),
        "is_final": ([[True]], bool),
    }


def postprocessing(given):
    ids = given["TOKENS_BATCH"][0, 0][: given["SEQUENCE_LENGTH"].item()].tolist()
    return {"OUTPUT": ([answer_text(ids).encode()], object)}


MODELS = {"preprocessing": preprocessing, "tensorrt_llm": tensorrt_llm, "postprocessing": postprocessing}
