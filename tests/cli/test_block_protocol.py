"""The block protocol through the real engine and its drafter: docs/block-protocol.md, line by line."""

import json
import os
import random
import shutil
import signal
import struct

import pytest

from block_kit import (BLOCK, CONTEXT, DRAFT_WINDOW, DRAFTER, NANO, VOCAB, WINDOW, Chain, Reference, Worker,
                       logits_of, text_prompt, top_two)

SEAMS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, DRAFT_WINDOW - 1, DRAFT_WINDOW, DRAFT_WINDOW + 1, 300]


@pytest.fixture
def start(build):
    workers = []

    def call(*flags, **kwargs):
        workers.append(Worker(*flags, **kwargs))
        return workers[-1]

    yield call
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="module")
def shared(build):
    """A candidate, a reference and a plain engine for tests that refuse nothing."""
    workers = [Worker(), Worker("--trusted"), Worker("--speculative-protocol", "v1.1", drafter=None)]
    yield workers
    for worker in workers:
        worker.kill()


def serial(worker, seed, count):
    """Tokens of serial decoding by an engine that has no drafter: the seed token and count more."""
    first = worker.ok("free_decode_begin", seed_tokens=seed)["seed_token"]
    return [first] + worker.ok("free_decode_run", count=count)["tokens"]


def widths_of(number, most=BLOCK):
    draw = random.Random(number)
    return lambda: draw.randint(1, most)


# --- hello ---------------------------------------------------------------------------------------


def test_hello_tells_what_is_served(start):
    candidate, reference, both = start(), start("--trusted"), \
        start("--trusted", "--speculative-protocol", "v1.1")
    assert candidate.hello["capabilities"] == ["dflash_block_decode"]
    assert reference.hello["capabilities"] == ["dflash_block_decode", "dflash_reference"]
    assert both.hello["capabilities"] == ["free_run_decode", "cohort_reference_replay",
                                          "dflash_block_decode", "dflash_reference"]
    assert both.hello["spec_modes"] == ["serial", "dflash"]
    assert "spec_modes" not in candidate.hello
    plain = start("--trusted", "--speculative-protocol", "v1.1", drafter=None)
    assert plain.hello["capabilities"] == ["free_run_decode", "cohort_reference_replay"]
    assert plain.hello["spec_modes"] == ["serial"] and "head_provenance" not in plain.hello


def test_the_environment_names_the_drafter_too(start):
    worker = start(drafter=None, env={"BENCH_WORKER_DRAFTER": str(DRAFTER)})
    assert worker.hello["capabilities"] == ["dflash_block_decode"]


# --- rounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", SEAMS)
def test_random_widths_give_serial_tokens_and_the_reference_agrees(shared, length):
    """Every row of every round, those of rejected drafts too: the reference's frame has its bits."""
    candidate, reference, plain = shared
    seed = text_prompt(length)
    wanted = serial(plain, seed, 150)
    chain, walk, width = Chain(candidate, seed), Reference(reference, seed), widths_of(length)
    assert chain.given == [walk.seed_token] == wanted[:1]
    seen = set()
    while len(chain.given) <= 150:
        w, token, n = width(), chain.given[-1], len(chain.given)
        r = chain.block(w)
        given = chain.given[n:]
        assert r["declared_rows"] == w
        seen.add((w, len(given)))
        s = walk.rows(given, w, [token] + r["draft_tokens"])
        assert s["reference_verify_top2_tokens"] == r["per_row_top2_tokens"]
        assert s["reference_verify_top2_logits"] == r["per_row_top2_logits"]
        assert s["reference_top2_tokens"] == r["per_row_top2_tokens"][:len(given)]
        assert s["reference_top2_logits"] == r["per_row_top2_logits"][:len(given)]
        assert all(f == given for f in s["reference_frame_argmax"])
        assert s["reference_k1_argmax"] == given
        assert s["reference_emitted_token_logits"] == s["reference_top1_logits"]
    assert chain.given[:151] == wanted
    assert chain.rejected > 0 and chain.accepted > 0
    chain.end()


def test_every_width_by_itself(shared):
    candidate, _, plain = shared
    seed = text_prompt(100, "novel-melville")
    wanted = serial(plain, seed, 60)
    for width in range(1, BLOCK + 1):
        chain = Chain(candidate, seed)
        chain.run(60, lambda: width)
        assert chain.given[:61] == wanted
        if width == 1:
            assert chain.accepted == chain.rejected == chain.rollbacks == 0
        chain.end()


def test_readouts_are_those_of_the_logits_command(shared, tmp_path):
    candidate = shared[0]
    seed = text_prompt(WINDOW - 3)
    chain = Chain(candidate, seed)
    replies = chain.run(90, widths_of(11))
    rows = logits_of(seed + chain.given, tmp_path)
    at = len(seed)
    for r in replies:
        for i in range(len(r["tokens"])):
            assert (r["per_row_top2_tokens"][i], r["per_row_top2_logits"][i]) == top_two(rows[at + i])
        at += len(r["tokens"])


def test_digests_do_not_depend_on_the_width(shared, start):
    """Rows given out have the digest of the serial row; other rows, other digests."""
    seed = text_prompt(WINDOW + 5)

    def digests(worker, width, count=80):
        replies = Chain(worker, seed).run(count, width)
        return [d for r in replies for d in r["per_row_hidden_digest"][:len(r["tokens"])]][:count]

    one = digests(shared[0], lambda: 1)
    assert len(set(one)) == 80
    assert digests(shared[0], lambda: BLOCK) == digests(shared[0], widths_of(5)) == one
    assert digests(start("--threads", "1", "--cpu", "portable"), widths_of(6), 8) == one[:8]


def test_a_rejected_row_has_its_own_readout(shared):
    """Not the chain's: what the target makes of the drafts that were wrong."""
    chain = Chain(shared[0], text_prompt(80))
    replies = chain.run(120, lambda: BLOCK)
    tails = [(r, len(r["tokens"])) for r in replies if len(r["tokens"]) < r["declared_rows"]]
    assert tails
    position, differs = len(chain.seed), 0
    for r, n in tails:
        differs += r["per_row_top2_tokens"][n:] != r["per_row_top2_tokens"][:r["declared_rows"] - n]
    assert differs > 0 and position < chain.end()["target_cache_offset"]


# --- one sequence after another ------------------------------------------------------------------


def bare(replies):
    return [{k: v for k, v in r.items() if k not in ("id", "nonce")} for r in replies]


def test_a_sequence_leaves_nothing_to_the_next(start):
    """Begin twice, a warm-up between, diagnostics between, another text before: the same replies."""
    def run(worker):
        return bare(Chain(worker, text_prompt(70)).run(40, widths_of(2)))

    fresh = run(start())
    worker = start()
    Chain(worker, text_prompt(200, "travel-darwin")).run(100, widths_of(3))
    assert run(worker) == fresh
    Chain(worker, text_prompt(5)).block(BLOCK)
    worker.ok("dflash_decode_warm")
    assert run(worker) == fresh
    worker.ok("dflash_decode_begin", seed_tokens=[7])
    assert run(worker) == fresh
    worker.ok("dflash_phase_diagnostics")
    assert run(worker) == fresh
    assert worker.close()[0::2] == (0, b"")


def test_diagnostics_drop_the_sequence(start):
    worker = start()
    chain = Chain(worker, text_prompt(70))
    chain.run(60, widths_of(4))
    assert chain.end()["rollback_round_count"] > 0
    empty = worker.ok("dflash_phase_diagnostics")
    assert [empty[k] for k in ("accepted_draft_count", "rejected_draft_count", "rollback_round_count",
                               "target_cache_offset")] == [0, 0, 0, 0]
    assert worker.refused("dflash_decode_block", token=chain.given[-1],
                          max_block_size=2).startswith("OUT-OF-ORDER: ")


def test_warm_up_opens_no_sequence(start):
    worker = start()
    chain = Chain(worker, [5, 6, 7])
    worker.ok("dflash_decode_warm")
    assert worker.refused("dflash_decode_block", token=chain.given[-1],
                          max_block_size=2).startswith("OUT-OF-ORDER: ")


def test_both_protocols_in_one_session(start):
    """A request of one protocol ends the other's sequence, and changes nothing else."""
    worker = start("--speculative-protocol", "v1.1")
    seed = text_prompt(66)
    wanted = serial(worker, seed, 30)
    chain = Chain(worker, seed)
    chain.run(30, widths_of(8))
    assert chain.given[:31] == wanted
    # A block request ended v1's sequence; a refusal of v1 in a session of blocks poisons it.
    assert serial(worker, seed, 30) == wanted
    assert worker.ok("prefill", prompt_tokens=seed)["token"] == wanted[0]
    assert Chain(worker, seed).run(30, widths_of(9)) and worker.ok("phase_diagnostics")["completed_work"] \
        == 31 * 2
    worker.ok("decode_begin", seed_tokens=seed)
    chain = Chain(worker, seed)
    assert worker.refused("decode_step", token=wanted[0]).startswith("OUT-OF-ORDER: ")
    assert worker.refused("dflash_decode_begin", seed_tokens=seed).startswith("SESSION-POISONED: ")


def test_v1_ends_a_sequence_of_blocks(start):
    for kind, fields in (("prefill", {"prompt_tokens": [1, 2]}), ("phase_diagnostics", {}),
                         ("decode_begin", {"seed_tokens": [1]})):
        worker = start()
        chain = Chain(worker, [5, 6, 7])
        worker.ok(kind, **fields)
        assert worker.refused("dflash_decode_block", token=chain.given[-1],
                              max_block_size=2).startswith("OUT-OF-ORDER: ")


def test_a_refusal_of_v1_poisons_no_session_of_v1(start):
    worker = start("--speculative-protocol", "v1.1")
    assert worker.refused("decode_step", token=1).startswith("OUT-OF-ORDER: ")
    Chain(worker, [5, 6]).block(4)


# --- the context ---------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [120, 145, 200])
def test_blocks_narrow_at_the_end_of_the_context(start, shared, context):
    worker, reference = start("--context", context), start("--trusted", "--context", context)
    seed = text_prompt(100)
    wanted = serial(shared[2], seed, context - 100)
    chain, walk = Chain(worker, seed, context), Reference(reference, seed)
    narrowed = 0
    while len(seed) + len(chain.given) - 1 < context:
        token, n = chain.given[-1], len(chain.given)
        r = chain.block(BLOCK)
        narrowed += r["declared_rows"] < BLOCK
        s = walk.rows(chain.given[n:], BLOCK, [token] + r["draft_tokens"])
        assert s["reference_verify_top2_logits"] == r["per_row_top2_logits"]
        assert s["reference_block_argmax"] == chain.given[n:]
    assert chain.given == wanted and narrowed > 0
    assert worker.refused("dflash_decode_block", token=chain.given[-1],
                          max_block_size=1).startswith("CONTEXT-EXCEEDED: ")
    assert reference.refused("dflash_reference_rows", **walk.fields([3], 1)) \
        .startswith("CONTEXT-EXCEEDED: ")


@pytest.mark.parametrize("context", [1, 2, 15, 16, 17, 33])
def test_small_contexts_are_warmed_and_served(start, shared, context):
    worker = start("--context", context)
    worker.ok("dflash_decode_warm")
    chain = Chain(worker, [2], context)
    while len(chain.given) < context:
        chain.block(BLOCK)
    assert chain.given == serial(shared[2], [2], context - 1)
    error = start("--context", context).refused("dflash_decode_begin", seed_tokens=[2] * (context + 1))
    assert error.startswith("CONTEXT-EXCEEDED: ")


# --- the reference -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, WINDOW - 8, DRAFT_WINDOW - 8])
def test_frames_leave_no_trace_in_the_chain(shared, length):
    """Frames of any width, over drafts that are noise, against a chain that has none: rows of width 1 of
    a candidate. To the bit, past both seams."""
    candidate, reference, _ = shared
    seed, draw = text_prompt(length, "essay-thoreau"), random.Random(length)
    chain = Chain(candidate, seed)
    rows = chain.run(190, lambda: 1)
    walk = Reference(reference, seed)
    at = 0
    while at < 190:
        width = draw.randint(1, BLOCK)
        count = draw.randint(1, min(width, 190 - at))
        noise = [draw.randrange(VOCAB) for _ in range(draw.randint(count, width) - count)]
        verify = chain.given[at:at + count] + noise if draw.random() < 0.8 else None
        s = walk.rows(chain.given[at + 1:at + 1 + count], width, verify)
        for i in range(count):
            assert s["reference_top2_tokens"][i] == rows[at + i]["per_row_top2_tokens"][0]
            assert s["reference_top2_logits"][i] == rows[at + i]["per_row_top2_logits"][0]
        assert s["reference_block_argmax"] == s["reference_k1_argmax"]
        at += count


def test_the_chain_is_the_candidates_not_the_references(shared, tmp_path):
    """Tokens that no argmax is: the chain goes where it is told, and prices each of them."""
    reference, draw = shared[1], random.Random(5)
    seed = text_prompt(90)
    walk = Reference(reference, seed)
    walk.prefix[-1] = 77  # the seed token that the candidate gave out
    told, prices = [], []
    for width in (4, 1, 16, 7, 2, 16):
        given = [draw.randrange(VOCAB) for _ in range(draw.randint(1, width))]
        verify = [walk.prefix[-1]] + [draw.randrange(VOCAB) for _ in range(width - 1)]
        s = walk.rows(given, width, verify)
        told += [(s["reference_top2_tokens"][i], s["reference_top2_logits"][i]) for i in range(len(given))]
        prices += s["reference_emitted_token_logits"]
    rows = logits_of(walk.prefix, tmp_path)
    given = walk.prefix[len(seed) + 1:]
    assert told == [top_two(rows[len(seed) + i]) for i in range(len(given))]
    assert prices == [rows[len(seed) + i][t] for i, t in enumerate(given)]


def test_a_verify_block_runs_its_own_tokens(shared, tmp_path):
    """Rows of the block stand behind the block's tokens, not behind the chain's."""
    seed = text_prompt(WINDOW - 4)
    walk = Reference(shared[1], seed)
    walk.rows([11, 12], 2)
    block = [12, 900, 901, 902, 903]
    s = walk.rows([13], 16, block)
    rows = logits_of(walk.prefix[:-2] + block, tmp_path)[-len(block):]
    assert [(t, l) for t, l in zip(s["reference_verify_top2_tokens"], s["reference_verify_top2_logits"])] \
        == [top_two(row) for row in rows]
    assert s["reference_frame_widths"] == [5, 16]


# --- refusals ------------------------------------------------------------------------------------

REFUSALS = {
    "block_before_begin": (False, "dflash_decode_block", {"token": 1, "max_block_size": 2}, "OUT-OF-ORDER"),
    "another_token": (True, "dflash_decode_block", {"token": None, "max_block_size": 2}, "TOKEN-NOT-LAST"),
    "width_0": (True, "dflash_decode_block", {"max_block_size": 0}, "BLOCK-WIDTH-INVALID"),
    "width_negative": (True, "dflash_decode_block", {"max_block_size": -1}, "BLOCK-WIDTH-INVALID"),
    "width_17": (True, "dflash_decode_block", {"max_block_size": BLOCK + 1}, "BLOCK-WIDTH-INVALID"),
    "no_width": (True, "dflash_decode_block", {}, "REQUEST-FIELDS"),
    "no_seed": (True, "dflash_decode_begin", {}, "REQUEST-FIELDS"),
    "warm_with_a_field": (False, "dflash_decode_warm", {"token": 1}, "REQUEST-FIELDS"),
    "foreign_field": (True, "dflash_decode_block", {"max_block_size": 2, "top_k": 3}, "REQUEST-FIELDS"),
    "seed_empty": (False, "dflash_decode_begin", {"seed_tokens": []}, "EMPTY-PROMPT"),
    "seed_outside": (False, "dflash_decode_begin", {"seed_tokens": [1, VOCAB]}, "TOKEN-OUT-OF-RANGE"),
    "seed_negative": (False, "dflash_decode_begin", {"seed_tokens": [-1]}, "TOKEN-OUT-OF-RANGE"),
    "seed_too_long": (False, "dflash_decode_begin", {"seed_tokens": [3] * (CONTEXT + 1)},
                      "CONTEXT-EXCEEDED"),
    "untrusted_prefill": (False, "dflash_reference_prefill", {"seed_tokens": [1]},
                          "CAPABILITY-NOT-ADVERTISED"),
    "untrusted_rows": (False, "dflash_reference_rows", {}, "CAPABILITY-NOT-ADVERTISED"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_of_a_candidate_have_names_and_poison(start, case):
    begun, kind, fields, name = REFUSALS[case]
    worker, fields = start(), dict(fields)
    if begun:
        chain = Chain(worker, [3, 4, 5])
        chain.block(3)
        if kind == "dflash_decode_block":
            last = chain.given[-1]
            fields["token"] = (last + 1) % VOCAB if "token" in fields else last
    error = worker.refused(kind, **fields)
    assert error.startswith(f"{name}: ")
    poisoned = [("dflash_decode_begin", {"seed_tokens": [1]}), ("dflash_decode_warm", {}),
                ("dflash_phase_diagnostics", {}), ("prefill", {"prompt_tokens": [1]}),
                ("phase_diagnostics", {})]
    for again, more in poisoned:
        assert worker.refused(again, **more).startswith("SESSION-POISONED: ")
    assert worker.close()[0] == 0


ROWS = {
    "before_prefill": ({}, "OUT-OF-ORDER"),
    "start_too_far": ({"start_offset": 1}, "OUT-OF-ORDER"),
    "start_negative": ({"start_offset": -1}, "OUT-OF-ORDER"),
    "count_0": ({"count": 0}, "ROWS-INVALID"),
    "count_above_width": ({"declared_block_width": 1}, "ROWS-INVALID"),
    "width_0": ({"declared_block_width": 0}, "BLOCK-WIDTH-INVALID"),
    "width_17": ({"declared_block_width": 17}, "BLOCK-WIDTH-INVALID"),
    "seed_count": ({"seed_token_count": 4}, "PREFIX-MISMATCH"),
    "prefix_short": ({"prefix_tokens": [3, 4, 5, 9, 8]}, "PREFIX-MISMATCH"),
    "prefix_long": ({"prefix_tokens": [3, 4, 5, 9, 8, 7, 6]}, "PREFIX-MISMATCH"),
    "another_seed": ({"prefix_tokens": [3, 4, 6, 9, 8, 7]}, "PREFIX-MISMATCH"),
    "given_outside": ({"prefix_tokens": [3, 4, 5, 9, 8, VOCAB]}, "TOKEN-OUT-OF-RANGE"),
    "given_negative": ({"prefix_tokens": [3, 4, 5, 9, -8, 7]}, "TOKEN-OUT-OF-RANGE"),
    "verify_outside": ({"verify_block_tokens": [9, 8, VOCAB]}, "TOKEN-OUT-OF-RANGE"),
    "verify_short": ({"verify_block_tokens": [9]}, "ROWS-INVALID"),
    "verify_empty": ({"verify_block_tokens": []}, "ROWS-INVALID"),
    "verify_wide": ({"verify_block_tokens": [9, 8, 1, 1, 1]}, "ROWS-INVALID"),
    "verify_elsewhere": ({"verify_block_tokens": [8, 8]}, "PREFIX-MISMATCH"),
    "no_prefix": ({"prefix_tokens": None}, "REQUEST-FIELDS"),
    "a_token": ({"token": 1}, "REQUEST-FIELDS"),
}


@pytest.mark.parametrize("case", ROWS)
def test_refusals_of_a_reference_have_names_and_poison(start, case):
    changes, name = ROWS[case]
    worker = start("--trusted")
    if case != "before_prefill":
        worker.ok("dflash_reference_prefill", seed_tokens=[3, 4, 5])
    good = {"prefix_tokens": [3, 4, 5, 9, 8, 7], "seed_token_count": 3, "start_offset": 0, "count": 2,
            "declared_block_width": 4}
    fields = {k: v for k, v in {**good, **changes}.items() if v is not None}
    assert worker.refused("dflash_reference_rows", **fields).startswith(f"{name}: ")
    assert worker.refused("dflash_reference_prefill", seed_tokens=[1]).startswith("SESSION-POISONED: ")


def test_the_chain_cannot_be_told_otherwise_later(start):
    for change in (3, 4, 5):  # the seed token; a token given out; the last, which no row has taken yet
        worker = start("--trusted")
        walk = Reference(worker, [3, 4, 5])
        walk.rows([8, 7], 4)
        walk.prefix[change] = 1
        assert worker.refused("dflash_reference_rows", **walk.fields([6], 4)) \
            .startswith("PREFIX-MISMATCH: ")


def test_roles_do_not_mix_in_a_sequence(start):
    worker = start("--trusted")
    token = worker.ok("dflash_reference_prefill", seed_tokens=[3, 4])["seed_token"]
    assert worker.refused("dflash_decode_block", token=token, max_block_size=2).startswith("OUT-OF-ORDER")
    worker = start("--trusted")
    token = worker.ok("dflash_decode_begin", seed_tokens=[3, 4])["seed_token"]
    assert worker.refused("dflash_reference_rows", prefix_tokens=[3, 4, token, 1], seed_token_count=2,
                          start_offset=0, count=1, declared_block_width=2).startswith("OUT-OF-ORDER")


def test_a_line_that_does_not_decode_poisons_a_session_of_blocks(start):
    for line in (b"nonsense\n", b'{"id":1,"kind":"dflash_decode_warm","width":3}\n',
                 b'{"id":1,"kind":"prefill","prompt_tokens":[1],"max_block_size":2}\n'):
        worker = start()
        worker.ok("dflash_decode_begin", seed_tokens=[1])
        worker.write(line)
        reply = worker.read()
        assert (reply["id"], reply["ok"]) == (-1, False) and reply["error"].startswith("WIRE-")
        assert worker.refused("dflash_decode_warm").startswith("SESSION-POISONED: ")


def test_without_a_drafter_the_protocol_is_not_served(start):
    worker = start(drafter=None)
    for kind, fields in (("dflash_decode_warm", {}), ("dflash_decode_begin", {"seed_tokens": [1]}),
                         ("dflash_reference_prefill", {"seed_tokens": [1]})):
        assert worker.refused(kind, **fields).startswith("CAPABILITY-NOT-ADVERTISED: ")
    worker.ok("prefill", prompt_tokens=[1])  # no block session has begun: v1 goes on


# --- logits that are no numbers ------------------------------------------------------------------


def doctored(folder, tensor, edit):
    """A copy of the bundled model with one tensor's bytes edited in place."""
    shutil.copytree(NANO, folder)
    for path in sorted(folder.glob("*.safetensors")):
        path.chmod(0o644)
        with open(path, "r+b") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(length))
            if tensor not in header:
                continue
            assert header[tensor]["dtype"] == "BF16"
            first, last = header[tensor]["data_offsets"]
            f.seek(8 + length + first)
            data = bytearray(f.read(last - first))
            edit(data, header[tensor]["shape"])
            f.seek(8 + length + first)
            f.write(data)
            return folder
    raise AssertionError(f"no tensor {tensor}")


def put(data, shape, row, column, bits):
    struct.pack_into("<H", data, 2 * (row * shape[1] + column), bits)


def test_a_row_of_nan_is_a_refusal(start, tmp_path):
    def poison(data, shape):
        for column in range(shape[1]):
            put(data, shape, 77, column, 0x7FC0)

    weights = doctored(tmp_path / "nan", "model.embed_tokens.weight", poison)
    worker = start(weights=weights)
    Chain(worker, [3, 4]).block(BLOCK)
    assert worker.refused("dflash_decode_begin", seed_tokens=[3, 77]).startswith("LOGITS-NOT-FINITE: ")
    assert worker.refused("dflash_decode_warm").startswith("SESSION-POISONED: ")
    for fields in ({"prefix_tokens": [3, 4, 77, 1]},
                   {"prefix_tokens": [3, 4, 5, 1], "verify_block_tokens": [5, 77]}):
        worker = start("--trusted", weights=weights)
        worker.ok("dflash_reference_prefill", seed_tokens=[3, 4])
        assert worker.refused("dflash_reference_rows", seed_token_count=2, start_offset=0, count=1,
                              declared_block_width=2, **fields).startswith("LOGITS-NOT-FINITE: ")


def test_an_infinite_logit_is_a_refusal(start, tmp_path):
    def poison(data, shape):  # one of the two is +Inf, whatever the sign of the value it meets
        put(data, shape, 100, 0, 0x7F80)
        put(data, shape, 101, 0, 0xFF80)

    worker = start("--trusted", weights=doctored(tmp_path / "inf", "lm_head.weight", poison))
    token = worker.ok("dflash_decode_begin", seed_tokens=[3, 4])["seed_token"]
    assert token in (100, 101)
    assert worker.refused("dflash_decode_block", token=token, max_block_size=1) \
        .startswith("LOGITS-NOT-FINITE: ")


# --- ends ----------------------------------------------------------------------------------------


def test_input_that_ends_inside_a_line(start):
    worker = start()
    Chain(worker, [3, 4]).block(4)
    worker.write(b'{"id":9,"kind":"dflash_decode_blo')
    code, err, rest = worker.close()
    assert code == 1 and "REQUEST-CUT" in err
    reply = json.loads(rest)
    assert (reply["id"], reply["ok"]) == (-1, False) and reply["error"].startswith("REQUEST-CUT: ")


def test_input_that_ends_between_rounds(start):
    worker = start()
    Chain(worker, [3, 4]).block(4)
    assert worker.close()[0::2] == (0, b"")


def test_an_interrupt_ends_the_worker(start):
    worker = start()
    Chain(worker, text_prompt(70)).block(4)
    os.kill(worker.process.pid, signal.SIGINT)
    code, _, rest = worker.close()
    assert code == -signal.SIGINT and rest == b""


def test_a_reader_that_goes_away_ends_the_worker(start):
    worker = start()
    chain = Chain(worker, [3, 4])
    worker.process.stdout.close()
    worker.write((json.dumps({"id": 99, "kind": "dflash_decode_block", "token": chain.given[-1],
                              "max_block_size": 4}) + "\n").encode())
    assert worker.process.wait(timeout=20) == 1
    assert b"writing a response" in worker.process.stderr.read()
