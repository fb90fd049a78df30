class Policy:
    """How the blocks of a prompt come into the cache; the engine makes one."""

    def choose(self, tokens, found, prices):
        def cost(way):
            moved = found.get(way, 0)
            return moved * prices[way] + (tokens - moved) * prices["compute"]

        return min(["compute", *found], key=cost)
