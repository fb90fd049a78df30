"""In place of a model of the pipeline, where a check serves a learner's repository: loaded in a moment.

Its config says which model it stands for, as it has the name and the tensors of that.
"""

import json

import numpy as np
import stand_ins
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt; one prompt a request."""

    def initialize(self, args):
        self.tensors = stand_ins.MODELS[json.loads(args["model_config"])["name"]]

    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(self._answer(request), flags=FINAL)  # decoupled or not

    def _answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        wanted = request.requested_output_names()
        made = self.tensors(given).items()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.asarray(*of)) for name, of in made if name in wanted]
        )
