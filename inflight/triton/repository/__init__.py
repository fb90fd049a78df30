"""A Triton model repository: assembled from templates, edited as protobuf, checked before a server sees it.

    repo = assemble("repo", engine_dir="engine", decoupled_mode=True)
    for problem in problems(repo):
        print(problem)

A model repository is a folder with one folder a model: `config.pbtxt` says what flows in and out and how the model is
run, `1/model.py` is the model's version 1. The templates in `triton/templates/` keep the `${name}` variables of
TensorRT-LLM.

Reading order: `layout` (names), `parameters` (the table of the models' settings), `pbtxt` (the file), `batchers`
(Triton's own fields), `editing`, `request` and `contracts` (what clients send), `ensembles`, `llmapi` (the file of
settings that TensorRT-LLM's model of today has), `validation`, `assembly`.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
