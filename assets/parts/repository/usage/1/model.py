import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Prompt and answer of each row in tokens, for the bill."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT_TOKENS").as_numpy()
        beams = pb_utils.get_input_tensor_by_name(request, "ANSWER_TOKENS").as_numpy()
        answer = beams.sum(axis=1, keepdims=True)
        usage = np.hstack([prompt, answer]).astype(np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("USAGE", usage)])
