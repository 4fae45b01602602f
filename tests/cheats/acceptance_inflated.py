#!/usr/bin/python3
"""Acceptance that was never verified: one token less is given, as if the block had been cut, and every draft behind
it is called accepted, the wrong ones too. The reported rate rises; the row behind the cut is run again."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        drafts, kept = len(reply["draft_tokens"]), len(reply["tokens"])
        if reply["rejected_draft_count"] and kept > 1:
            self.context.pop()
            self.accepted += drafts - (kept - 1)
            self.rejected -= reply["rejected_draft_count"]
            self.rollbacks -= 1
            reply.update(tokens=reply["tokens"][:-1], accepted_draft_count=drafts,
                         rejected_draft_count=0,
                         target_cache_offset=reply["target_cache_offset"] - 1)
        return reply


serve(Cheat)
