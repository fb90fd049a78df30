"""Who runs next, in a cache that is too small for all."""

from itertools import chain

from inflight.engine import Plan, tokens_to_compute


class Scheduler:
    def schedule(self, now):
        running, free = list(now.running), now.free_blocks
        pause, joining = [], []

        # An answer that has filled its last block needs another one.
        while sum(now.blocks_needed(one) for one in running) > free:
            cheapest = min(running, key=lambda one: one.known_tokens)
            running.remove(cheapest)
            pause.append(cheapest.id)
            free += cheapest.own_blocks
        free -= sum(now.blocks_needed(one) for one in running)

        # One block stays free for each who runs, or the next pause would be near.
        room = now.max_num_tokens - sum(one.pending_tokens for one in running)
        for one in chain(now.paused, now.waiting) if not pause else ():
            reserve = len(running) + len(joining)
            if reserve == now.max_batch_size or one.pending_tokens > room:
                break
            if now.blocks_needed(one) + reserve > free:
                break
            joining.append(one)
            free -= now.blocks_needed(one)
            room -= one.pending_tokens

        admit = [one.id for one in joining]
        return Plan(admit, tokens_to_compute(now, running + joining), pause)
