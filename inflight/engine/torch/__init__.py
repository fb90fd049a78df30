"""The engine's model on a GPU: `builder` writes its folder, `runner` computes one iteration."""
