"""What the stand-in for an engine answers (`assets/stand-in-engine`), for it and for who checks the answer."""


def answer_ids(ids: list[int], most: int) -> list[int]:
    """The answer to a prompt's token ids: the last of them, how many follows from the prompt; at most `most`.

    Each mistake in an ensemble's maps shows in it: a prompt cut short, another limit, another prompt.
    """
    number = 1 + sum(ids) % max(1, most)
    return ids[-number:]
