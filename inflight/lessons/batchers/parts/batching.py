"""Which of the waiting texts are computed together, as their padded volume allows."""


def take(waiting: list[int], limit: int) -> list[int] | None:
    """Places in `waiting` of the texts that leave together."""
    # The nearest in length first: they are padded least, and pad the others least.
    by_likeness = sorted(
        range(1, len(waiting)), key=lambda place: abs(waiting[place] - waiting[0])
    )
    taken, longest = [0], waiting[0]
    for place in by_likeness:
        with_it = max(longest, waiting[place])
        if with_it * (len(taken) + 1) <= limit:
            taken.append(place)
            longest = with_it
    return taken
