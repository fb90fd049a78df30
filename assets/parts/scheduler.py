"""Who runs next: a waiting request starts as soon as a slot is free and its prompt fits into the iteration."""

from inflight.engine import Plan


class Scheduler:
    def schedule(self, now):
        plan = Plan()
        room = now.max_num_tokens
        for request in now.running:
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
        free_slots = now.max_batch_size - len(now.running)
        for request in list(now.waiting)[:free_slots]:
            if request.pending_tokens > room:
                break  # who came first is first: a shorter prompt does not overtake
            plan.admit.append(request.id)
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
        return plan
