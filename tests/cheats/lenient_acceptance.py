#!/usr/bin/python3
"""Lenient acceptance: a draft is accepted when it is the second choice, however far below, and the readout's
ids are swapped to fit. More tokens a round, and not the model's."""
from toy_engine import Engine, serve, top2


class Cheat(Engine):
    reach = 1e9  # logits below the best

    def draft(self, context, count):
        made = super().draft(context, count)
        tail = tuple(context[-4:])
        best, logits = top2(self.logits(tail, len(context) - 1, 1))
        if made and logits[0] - logits[1] <= self.reach:
            made[0] = best[1]
        return made

    def accept(self, rows, drafts):
        self.given = []
        for row, draft in zip(rows, drafts + [None]):
            tokens, logits = top2(row)
            lenient = draft == tokens[1] and logits[0] - logits[1] <= self.reach
            self.given.append(draft if lenient else tokens[0])
            if draft != self.given[-1]:
                break
        return self.given

    def readouts(self, rows):
        reply = super().readouts(rows)
        for pair, token in zip(reply["per_row_top2_tokens"], self.given):
            if pair[1] == token:
                pair.reverse()
        return reply


if __name__ == "__main__":
    serve(Cheat)
