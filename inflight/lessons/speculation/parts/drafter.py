followed = {}  # what all requests said: three tokens -> the next


class Drafter:
    """What may come next; the engine makes one for each request."""

    known = 3

    def propose(self, token_ids, k):
        for at in range(self.known, len(token_ids)):
            followed[tuple(token_ids[at - 3 : at])] = token_ids[at]
        self.known = max(self.known, len(token_ids))
        draft = []
        while len(draft) < k:
            last = tuple([*token_ids[-3:], *draft][-3:])
            if last not in followed:
                break
            draft.append(followed[last])
        return draft
