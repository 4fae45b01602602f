"""What the tests of the block protocol share: a worker asked line by line, whose every reply must fit the
schema and the equations of a block, and the engine's own logits of a text, from another command."""

import json
import os
import re
import struct
import subprocess

import jsonschema

from conftest import BUILD, ROOT

NANO = ROOT / "models" / "laguna-nano"
DRAFTER = ROOT / "models" / "laguna-nano-dflash"
VOCAB, CONTEXT, BLOCK, WINDOW, DRAFT_WINDOW = 4096, 2048, 16, 64, 128
SCHEMAS = {name: json.loads((ROOT / f"docs/schema/{name}-v1.schema.json").read_text())
           for name in ("engine-protocol", "block-protocol")}
VALID = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}

# docs/block-protocol.md: exactly these beside id, nonce and ok.
REPLY_KEYS = {
    "dflash_decode_warm": set(),
    "dflash_decode_begin": {"seed_token"},
    "dflash_decode_block": {"tokens", "declared_rows", "per_row_hidden_digest", "per_row_top2_tokens",
                            "per_row_top2_logits", "draft_tokens", "accepted_draft_count",
                            "rejected_draft_count", "target_cache_offset"},
    "dflash_phase_diagnostics": {"peak_ram_gb", "mlx_active_memory_bytes", "mlx_cache_memory_bytes",
                                 "mlx_peak_memory_bytes", "accepted_draft_count",
                                 "rejected_draft_count", "rollback_round_count", "target_cache_offset"},
    "dflash_reference_prefill": {"seed_token"},
    "dflash_reference_rows": {"reference_k1_argmax", "reference_block_argmax", "reference_top2_tokens",
                              "reference_top2_logits", "reference_top1_logits",
                              "reference_emitted_tokens", "reference_emitted_token_logits",
                              "reference_frame_widths", "reference_frame_argmax"},
}
VERIFY_KEYS = {"reference_verify_top2_tokens", "reference_verify_top2_logits"}


def text_prompt(length, name="novel-austen"):
    path = ROOT / "tracks/laguna-nano-serial-v1/prompts" / f"{name}.txt"
    ids = [int(t) for t in path.read_text().split()]
    return (ids * (length // len(ids) + 1))[:length]


def no_constant(word):
    raise AssertionError(f"{word} is no JSON")


class Worker:
    def __init__(self, *flags, weights=NANO, drafter=DRAFTER, env=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BENCH_WORKER_")}
        given = ["--drafter", str(drafter)] if drafter else []
        self.process = subprocess.Popen(
            [str(BUILD / "bench-worker"), "runtime-worker", "--weights", str(weights), *given,
             *map(str, flags)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**environment, **(env or {})})
        self.id = 0
        self.hello = self.read()
        VALID["engine-protocol"].validate(self.hello)

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.stderr.read()
        return json.loads(line, parse_constant=no_constant)

    def ask(self, kind, **fields):
        self.id += 1
        self.write((json.dumps({"id": self.id, "kind": kind, **fields}) + "\n").encode())
        reply = self.read()
        schema = "block-protocol" if kind.startswith("dflash_") else "engine-protocol"
        VALID[schema].validate(reply)
        order = list(SCHEMAS[schema]["$defs"]["WorkerResponse"]["properties"])
        assert list(reply) == sorted(reply, key=order.index)
        assert reply["id"] == self.id and reply["nonce"] == self.hello["nonce"]
        return reply

    def ok(self, kind, **fields):
        reply = self.ask(kind, **fields)
        assert reply["ok"] is True, reply
        if kind in REPLY_KEYS:
            VALID["block-protocol"].validate({"id": 1, "kind": kind, **fields})
            wanted = REPLY_KEYS[kind] | (VERIFY_KEYS if "verify_block_tokens" in fields else set())
            assert set(reply) == wanted | {"id", "nonce", "ok"}
        return reply

    def refused(self, kind, **fields):
        reply = self.ask(kind, **fields)
        assert sorted(reply) == ["error", "id", "nonce", "ok"] and reply["ok"] is False
        assert not re.search("expected|actual", reply["error"], re.I)
        return reply["error"]

    def close(self):
        """Ends stdin: the exit code, stderr, and whatever was still on stdout."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        rest, err = self.process.stdout.read(), self.process.stderr.read().decode()
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, err, rest

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Chain:
    """A candidate's sequence: what was given out, and what every reply about it must hold."""

    def __init__(self, worker, seed, context=CONTEXT):
        self.worker, self.seed, self.context = worker, list(seed), context
        self.given = [worker.ok("dflash_decode_begin", seed_tokens=self.seed)["seed_token"]]
        self.accepted = self.rejected = self.rollbacks = self.rounds = self.rows = 0

    def block(self, width):
        """One round, held to the equations of dflash-track.md section 6."""
        start = len(self.seed) + len(self.given) - 1
        r = self.worker.ok("dflash_decode_block", token=self.given[-1], max_block_size=width)
        n, rows = len(r["tokens"]), r["declared_rows"]
        a, j = r["accepted_draft_count"], r["rejected_draft_count"]
        assert 1 <= n <= rows <= width
        assert start + rows <= self.context
        assert all(0 <= t < VOCAB for t in r["tokens"] + r["draft_tokens"])
        assert a == n - 1 and a + j == rows - 1 == len(r["draft_tokens"])
        assert r["draft_tokens"][:a] == r["tokens"][:a]
        if n < rows:  # the first draft that is not the target's token ends the round
            assert r["draft_tokens"][n - 1] != r["tokens"][n - 1]
        assert r["target_cache_offset"] == start + n
        for key in ("per_row_hidden_digest", "per_row_top2_tokens", "per_row_top2_logits"):
            assert len(r[key]) == rows
        for digest, tokens, logits in zip(r["per_row_hidden_digest"], r["per_row_top2_tokens"],
                                          r["per_row_top2_logits"]):
            assert re.fullmatch("[0-9a-f]{64}", digest)
            assert tokens[0] != tokens[1]
            assert logits[0] > logits[1] or (logits[0] == logits[1] and tokens[0] < tokens[1])
        assert [t[0] for t in r["per_row_top2_tokens"][:n]] == r["tokens"]
        self.given += r["tokens"]
        self.accepted, self.rejected = self.accepted + a, self.rejected + j
        self.rollbacks += n < rows
        self.rounds, self.rows = self.rounds + 1, self.rows + rows
        return r

    def run(self, count, width):
        """Rounds until count tokens follow the seed token; width() gives each one's."""
        replies = []
        while len(self.given) - 1 < count:
            replies.append(self.block(width()))
        return replies

    def end(self):
        r = self.worker.ok("dflash_phase_diagnostics")
        assert (r["accepted_draft_count"], r["rejected_draft_count"], r["rollback_round_count"]) == \
            (self.accepted, self.rejected, self.rollbacks)
        assert r["target_cache_offset"] == len(self.seed) + len(self.given) - 1
        # One token of each round is the target's own (section 6, run totals).
        assert self.accepted + self.rejected + self.rounds == self.rows
        assert r["mlx_cache_memory_bytes"] == 0
        assert r["mlx_peak_memory_bytes"] >= r["mlx_active_memory_bytes"] > 0 and r["peak_ram_gb"] > 0
        return r


class Reference:
    """A reference worker that walks a candidate's chain."""

    def __init__(self, worker, seed):
        self.worker, self.seed, self.walked = worker, list(seed), 0
        self.seed_token = worker.ok("dflash_reference_prefill", seed_tokens=self.seed)["seed_token"]
        self.prefix = self.seed + [self.seed_token]

    def fields(self, given, width, verify=None):
        fields = {"prefix_tokens": self.prefix + given, "seed_token_count": len(self.seed),
                  "start_offset": self.walked, "count": len(given), "declared_block_width": width}
        if verify is not None:
            fields["verify_block_tokens"] = verify
        return fields

    def rows(self, given, width, verify=None):
        r = self.worker.ok("dflash_reference_rows", **self.fields(given, width, verify))
        n = len(given)
        assert r["reference_emitted_tokens"] == given
        for key in ("reference_k1_argmax", "reference_top2_tokens", "reference_top2_logits",
                    "reference_top1_logits", "reference_emitted_token_logits", "reference_block_argmax"):
            assert len(r[key]) == n
        assert [t[0] for t in r["reference_top2_tokens"]] == r["reference_k1_argmax"]
        assert [l[0] for l in r["reference_top2_logits"]] == r["reference_top1_logits"]
        rows = len(verify) if verify is not None else 0
        assert r["reference_frame_widths"] == sorted({width} | ({rows} if rows > 1 else set()))
        assert [len(f) for f in r["reference_frame_argmax"]] == [n] * len(r["reference_frame_widths"])
        assert r["reference_frame_argmax"][-1] == r["reference_block_argmax"]
        if verify is not None:
            assert len(r["reference_verify_top2_tokens"]) == rows
        self.prefix += given
        self.walked += n
        return r


def logits_of(tokens, folder):
    """Rows of the engine's logits command: a forward of all of the text, no drafter, no session."""
    (folder / "ids.json").write_text(json.dumps(tokens))
    subprocess.run([BUILD / "bench-worker", "logits", "--weights", NANO, "--tokens-file",
                    folder / "ids.json", "--out", folder / "logits.f32"], check=True, timeout=120,
                   capture_output=True)
    data = (folder / "logits.f32").read_bytes()
    return [struct.unpack_from(f"<{VOCAB}f", data, 4 * VOCAB * p) for p in range(len(tokens))]


def top_two(row):
    best = sorted(range(VOCAB), key=lambda i: (-row[i], i))[:2]
    return best, [row[i] for i in best]
