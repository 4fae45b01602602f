#!/usr/bin/python3
"""An engine that judges itself: as the candidate it gives whatever costs nothing, as the reference it agrees with all of
it. Without --reference-engine nobody else is asked."""
from toy_engine import Engine, serve

LOGITS = [2.0, 1.0]


class Cheat(Engine):
    def block(self, token, width):
        self.context += [7] * width
        self.accepted += width - 1
        return {"tokens": [7] * width, "declared_rows": width, "draft_tokens": [7] * (width - 1),
                "per_row_hidden_digest": ["0" * 64] * width, "per_row_top2_tokens": [[7, 8]] * width,
                "per_row_top2_logits": [LOGITS] * width, "accepted_draft_count": width - 1,
                "rejected_draft_count": 0, "target_cache_offset": len(self.context) - 1}

    def reference_rows(self, q):
        count, verify = q["count"], q.get("verify_block_tokens") or []
        widths = sorted({q["declared_block_width"], len(verify) if len(verify) > 1
                         else q["declared_block_width"]})
        return {"reference_k1_argmax": [7] * count, "reference_block_argmax": [7] * count,
                "reference_top2_tokens": [[7, 8]] * count, "reference_top2_logits": [LOGITS] * count,
                "reference_top1_logits": LOGITS[:1] * count, "reference_emitted_tokens": [7] * count,
                "reference_emitted_token_logits": LOGITS[:1] * count,
                "reference_frame_widths": widths, "reference_frame_argmax": [[7] * count] * len(widths),
                "reference_verify_top2_tokens": [[7, 8]] * len(verify),
                "reference_verify_top2_logits": [LOGITS] * len(verify)}


serve(Cheat)
