#!/usr/bin/python3
"""A block engine with a toy language model: docs/block-protocol.md in plain Python, both roles.

    toy_engine.py runtime-worker --weights DIR --drafter DIR [--trusted] [...]

The logits of a row follow from a hash of the last four tokens and the row's position: a sum over layers
of the experts that the row is routed to. Every logit is a multiple of 2^-10, so float32 holds it exactly.
The drafter knows the answer and is right as often as its toy.json says. An engine that cheats is a
subclass that overrides one method; `serve(Engine)` runs it.

DIR/toy.json of the weights: vocab (64), salt, layers (4), experts (4), experts_per_token (2), context (4096),
near_ties_per_thousand (60), width_drift (0: the largest logit error of a row in a forward of several).
DIR/toy.json of the drafter: right_per_thousand (700)."""

import functools
import hashlib
import json
import os
import pathlib
import struct
import sys

WIDEST = 16
NONCE = "70790000c0ffee"


class Refused(Exception):
    """A request that cannot be answered; the session is poisoned afterwards."""


def load(folder, defaults):
    path = pathlib.Path(folder) / "toy.json"
    return {**defaults, **(json.loads(path.read_text()) if path.is_file() else {})}


def draw(*parts):
    """A number of 64 bits that follows from the parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


class Engine:
    def __init__(self, weights, drafter, trusted=False):
        self.model = load(weights, {"vocab": 64, "salt": 1, "layers": 4, "experts": 4,
                                    "experts_per_token": 2, "context": 4096,
                                    "near_ties_per_thousand": 60, "width_drift": 0.0})
        self.drafter = load(drafter, {"right_per_thousand": 700})
        self.trusted = trusted
        self.context = None  # tokens whose rows were run and kept, then the last one given out
        self.reference = None
        self.seed_count = self.accepted = self.rejected = self.rollbacks = 0
        self.logits = functools.lru_cache(maxsize=65536)(self.logits)

    # ---- the model ----

    def layer(self, number, tail, position):
        """What one layer adds to the logits, before it is scaled: the experts' mean, in 1/1024."""
        m = self.model
        first = draw(m["salt"], "route", number, tail, position) % m["experts"]
        total = [0] * m["vocab"]
        for e in range(m["experts_per_token"]):
            expert = (first + e) % m["experts"]
            key = repr((m["salt"], number, expert, tail, position)).encode()
            values = struct.unpack("<%dH" % m["vocab"],
                                   hashlib.shake_128(key).digest(2 * m["vocab"]))
            total = [t + v % 4096 for t, v in zip(total, values)]
        return total

    def trunk(self, tail, position):
        """The logits of a row, in 1/1024."""
        total = [0] * self.model["vocab"]
        for number in range(self.model["layers"]):
            total = [t + v for t, v in zip(total, self.layer(number, tail, position))]
        m, key = self.model, (self.model["salt"], "gap", tail, position)
        best = max(range(len(total)), key=lambda i: (total[i], -i))
        if draw(key) % 1000 < m["near_ties_per_thousand"]:
            second = max((i for i in range(len(total)) if i != best), key=lambda i: total[i])
            total[best] = total[second] + draw(key, "tie") % 40
        else:
            total[best] += 1024 + draw(key, "clear") % 4096
        return total

    def logits(self, tail, position, width):
        """The logits of one row in a forward of `width` rows; tail: the last tokens of its context."""
        row = self.trunk(tail, position)
        drift = int(self.model["width_drift"] * 1024) if width > 1 else 0
        if drift:
            row = [v + draw("drift", width, tail, position, i) % (2 * drift + 1) - drift
                   for i, v in enumerate(row)]
        return tuple(v / 1024 for v in row)

    def rows(self, context, fed):
        """One forward: the logits of each fed token's row, behind the context."""
        chain = list(context) + list(fed)
        start = len(context)
        return [self.logits(tuple(chain[max(0, at - 3):at + 1]), at, len(fed))
                for at in range(start, len(chain))]

    def draft(self, context, count):
        """Drafts of the tokens that follow the context."""
        made, chain = [], list(context)
        for _ in range(count):
            tail = tuple(chain[-4:])
            right = top2(self.logits(tail, len(chain) - 1, 1))[0]
            if draw("draft", tail, len(chain)) % 1000 >= self.drafter["right_per_thousand"]:
                right[0] = (right[0] + 1 + draw("wrong", tail) % (self.model["vocab"] - 1)) \
                    % self.model["vocab"]
            made.append(right[0])
            chain.append(right[0])
        return made

    # ---- the candidate ----

    def warm(self):
        self.begin([2] * 64)
        for width in range(WIDEST, 0, -1):
            self.block(self.context[-1], width)
        self.drop()

    def drop(self):
        self.context = None
        self.seed_count = self.accepted = self.rejected = self.rollbacks = 0

    def begin(self, seed):
        self.check_tokens(seed)
        self.drop()
        token = top2(self.rows(seed[:-1], seed[-1:])[0])[0][0]
        self.context, self.seed_count = list(seed) + [token], len(seed)
        return token

    def block(self, token, width):
        """One round, as a dict of the reply's keys."""
        if self.context is None or not 1 <= width <= WIDEST or token != self.context[-1]:
            raise Refused("a round needs a sequence, its last token and a width of 1 to 16")
        if len(self.context) + width > self.model["context"]:
            raise Refused("the context is full")
        drafts = self.draft(self.context, self.draft_count(width))
        rows = self.rows(self.context[:-1], [token] + drafts)
        tokens = self.accept(rows, drafts)
        kept, rejected = len(tokens), len(drafts) + 1 - len(tokens)
        self.context += tokens
        self.accepted += kept - 1
        self.rejected += rejected
        self.rollbacks += rejected > 0
        return {"tokens": tokens, "declared_rows": len(rows), **self.readouts(rows),
                "draft_tokens": drafts, "accepted_draft_count": kept - 1,
                "rejected_draft_count": rejected, "target_cache_offset": len(self.context) - 1}

    def draft_count(self, width):
        return width - 1

    def accept(self, rows, drafts):
        """The tokens of a round: argmaxes as long as the drafts before them were right."""
        tokens = [top2(rows[0])[0][0]]
        for row, draft in zip(rows[1:], drafts):
            if draft != tokens[-1]:
                break
            tokens.append(top2(row)[0][0])
        return tokens

    def readouts(self, rows):
        best = [top2(row) for row in rows]
        return {"per_row_hidden_digest": [
                    hashlib.sha256(struct.pack("<%df" % len(r), *r)).hexdigest() for r in rows],
                "per_row_top2_tokens": [tokens for tokens, _ in best],
                "per_row_top2_logits": [logits for _, logits in best]}

    def diagnostics(self):
        reply = {"peak_ram_gb": 0.01, "mlx_active_memory_bytes": 0, "mlx_cache_memory_bytes": 0,
                 "mlx_peak_memory_bytes": 0, "accepted_draft_count": self.accepted,
                 "rejected_draft_count": self.rejected, "rollback_round_count": self.rollbacks,
                 "target_cache_offset": len(self.context) - 1 if self.context else 0}
        self.drop()
        return reply

    # ---- the reference ----

    def reference_prefill(self, seed):
        self.check_tokens(seed)
        token = top2(self.rows(seed[:-1], seed[-1:])[0])[0][0]
        self.reference = {"seed": list(seed), "walked": 0}
        return token

    def reference_rows(self, q):
        chain, count, start = self.reference, q["count"], q["start_offset"]
        if chain is None:
            raise Refused("no chain: a reference_prefill comes first")
        prefix, base = q["prefix_tokens"], len(chain["seed"]) + start
        verify = q.get("verify_block_tokens") or []
        if start != chain["walked"]:
            raise Refused("OUT-OF-ORDER: the chain stands at another row")
        if q["seed_token_count"] != len(chain["seed"]) or count < 1 \
                or len(prefix) != base + 1 + count or prefix[:len(chain["seed"])] != chain["seed"] \
                or not count <= q["declared_block_width"] <= WIDEST \
                or verify and (verify[0] != prefix[base] or not count <= len(verify) <= WIDEST):
            raise Refused("the rows asked for do not continue the chain")
        self.check_tokens(prefix + verify)
        fed, given = prefix[base:base + count], prefix[base + 1:]
        rows = [self.rows(prefix[:base + i], [token])[0] for i, token in enumerate(fed)]
        best = [top2(row) for row in rows]
        widths = sorted({q["declared_block_width"]} | ({len(verify)} if len(verify) > 1 else set()))
        frames = []
        for width in widths:
            frame = (fed + verify[count:] + [fed[-1]] * width)[:width]
            frames.append([top2(row)[0][0] for row in self.rows(prefix[:base], frame)[:count]])
        chain["walked"] += count
        reply = {"reference_k1_argmax": [t[0] for t, _ in best],
                 "reference_block_argmax": frames[widths.index(q["declared_block_width"])],
                 "reference_top2_tokens": [t for t, _ in best],
                 "reference_top2_logits": [v for _, v in best],
                 "reference_top1_logits": [v[0] for _, v in best],
                 "reference_emitted_tokens": given,
                 "reference_emitted_token_logits": [row[t] for row, t in zip(rows, given)],
                 "reference_frame_widths": widths, "reference_frame_argmax": frames}
        if verify:
            replayed = [top2(row) for row in self.rows(prefix[:base], verify)]
            reply["reference_verify_top2_tokens"] = [t for t, _ in replayed]
            reply["reference_verify_top2_logits"] = [v for _, v in replayed]
        return reply

    # ---- the wire ----

    def check_tokens(self, tokens):
        if not tokens or len(tokens) > self.model["context"] \
                or any(not 0 <= t < self.model["vocab"] for t in tokens):
            raise Refused("tokens: none, too many, or outside the vocabulary")

    def hello(self):
        return {"id": 0, "nonce": NONCE, "ok": True, "protocol_version": 1, "backend": "cpu",
                "device": "toy", "capabilities": ["dflash_block_decode"]
                + (["dflash_reference"] if self.trusted else [])}

    def answer(self, q):
        kind = q["kind"]
        if kind.startswith("dflash_reference") and not self.trusted:
            raise Refused("this worker is no reference")
        if kind == "dflash_decode_warm":
            self.warm()
            return {}
        if kind == "dflash_decode_begin":
            return {"seed_token": self.begin(q["seed_tokens"])}
        if kind == "dflash_decode_block":
            return self.block(q["token"], q["max_block_size"])
        if kind == "dflash_phase_diagnostics":
            return self.diagnostics()
        if kind == "dflash_reference_prefill":
            return {"seed_token": self.reference_prefill(q["seed_tokens"])}
        if kind == "dflash_reference_rows":
            return self.reference_rows(q)
        raise Refused("unknown kind " + repr(kind))


def top2(row):
    """([ids], [logits]) of the two largest, ties to the lowest id."""
    first = max(row)
    a = row.index(first)
    rest = row[:a] + row[a + 1:]
    second = max(rest)
    b = rest.index(second)
    return [a, b + (b >= a)], [first, second]


def send(reply):
    sys.stdout.write(json.dumps(reply, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve(engine_class):
    argv = sys.argv[1:]
    options = dict(zip(argv, argv[1:]))
    engine = engine_class(options["--weights"], options["--drafter"], "--trusted" in argv)
    send(engine.hello())
    poisoned = False
    for line in sys.stdin:
        ident = -1
        try:
            q = json.loads(line)
            ident = q["id"]
            if poisoned:
                raise Refused("SESSION-POISONED: a request before was refused")
            reply = {"id": ident, "nonce": NONCE, "ok": True, **engine.answer(q)}
        except (Refused, KeyError, ValueError) as e:
            poisoned = True
            reply = {"id": ident, "nonce": NONCE, "ok": False, "error": str(e) or "refused"}
        send(reply)
    os._exit(0)


if __name__ == "__main__":
    serve(Engine)
