"""The engine's model on a GPU.

`builder` writes its weights; `runner` computes an iteration, by `llama`, `attention` and `graphs`. The same code also
runs on a CPU, to try it.
"""
