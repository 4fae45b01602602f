"""benchd conformance: our engine passes whole; an engine with one fault fails the checks of the rule that
it breaks, and no other."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import BUILD, QUICK, ROOT
from judge_kit import group_members

UNRULY = ROOT / "tests/engines/unruly_engine.py"
EXAMPLE = ROOT / "examples/python-engine"
WEIGHTS = EXAMPLE / "weights"
# Eight MiB and more of text each: left out where they are not the point.
LARGE = ("line_too_long", "oversize_prompt", "long_line")
NO_HELLO = {"hello_v1", "hello_v1_1"}


def conformance(engine, weights, *flags, env=None, timeout=300, vocab=509, seed=64):
    limits = {"MLXFAST_HELLO_TIMEOUT_S": "60", "MLXFAST_REPLY_TIMEOUT_S": "60",
              "MLXFAST_BARRIER_TIMEOUT_S": "60"}
    environment = {**os.environ, **limits, **(env or {})}
    for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID"):
        environment.pop(name, None)
    size = ["--vocab", vocab, "--seed-tokens", seed] if vocab else []
    return subprocess.run([str(a) for a in [BUILD / "benchd", "conformance", "--engine", engine,
                                            "--weights", weights, "--quiet", *size, *flags]],
                          capture_output=True, text=True, timeout=timeout, env=environment)


def verdicts(result):
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    found = {c["name"]: c["verdict"] for c in document["checks"]}
    counts = [sum(v == word for v in found.values()) for word in ("pass", "fail", "skipped")]
    assert counts == [document["passed"], document["failed"], document["skipped"]]
    assert document["conforms"] is (document["failed"] == 0)
    assert result.returncode == (0 if document["conforms"] else 1), result.stderr
    for check in document["checks"]:
        assert bool(check["detail"]) == (check["verdict"] != "pass"), check
    return found


def named(found, verdict):
    return {name for name, v in found.items() if v == verdict}


# ---- our engine ----


def nano_contract(tmp_path):
    """The bundled track's; where all is slow, with prompts of 128 tokens, twice the window, for its 512."""
    path = ROOT / "tracks/laguna-nano-serial-v1/contract.json"
    if not QUICK:
        return path
    short = tmp_path / "contract.json"
    short.write_text(json.dumps({**json.loads(path.read_text()), "seed_tokens": 128}))
    return short


def test_bench_worker_passes_whole_with_the_bundled_model(build, nano, tmp_path):
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(subprocess.run([build / "bench-worker", "manifest", "--weights", nano],
                                        capture_output=True, check=True, timeout=60).stdout)
    result = conformance(build / "bench-worker", nano, "--json", "--manifest", manifest, "--contract",
                         nano_contract(tmp_path), vocab=None, timeout=600)
    found = verdicts(result)
    assert named(found, "fail") == set(), result.stdout
    assert named(found, "skipped") == {"cohort", "cohort_counters", "cohort_bounds", "cohort_timing",
                                       "replay"}


def test_bench_worker_with_a_drafter_passes_whole(build, nano, tmp_path):
    """The block protocol beside v1, in the same hello; mode dflash among the spec modes."""
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(subprocess.run([build / "bench-worker", "manifest", "--weights", nano],
                                        capture_output=True, check=True, timeout=60).stdout)
    result = conformance(build / "bench-worker", nano, "--json", "--manifest", manifest, "--contract",
                         nano_contract(tmp_path), vocab=None, timeout=600,
                         env={"BENCH_WORKER_DRAFTER": str(ROOT / "models/laguna-nano-dflash")})
    found = verdicts(result)
    assert named(found, "fail") == set(), result.stdout
    assert named(found, "skipped") == {"cohort", "cohort_counters", "cohort_bounds", "cohort_timing",
                                       "replay"}
    assert found["spec_runs"] == found["spec_echo"] == found["hello_v1"] == "pass"


def test_bench_worker_of_the_organiser_replays(build, tmp_path):
    """Trusted, with a tiny checkpoint. The engine's own flag comes from a script, as an organiser would
    do it."""
    script = tmp_path / "trusted-worker"
    script.write_text(f'#!/bin/sh\nexec "{build / "bench-worker"}" "$@" --trusted\n')
    script.chmod(0o755)
    weights = ROOT / "tests/vectors/laguna/top-8"
    found = verdicts(conformance(script, weights, "--json", "--trusted", vocab=128))
    assert named(found, "fail") == set()
    assert found["replay"] == "pass" and found["replay_not_advertised"] == "skipped"
    untrusted = verdicts(conformance(script, weights, "--json", "--only", "hello_v1_1", vocab=128))
    assert named(untrusted, "fail") == {"hello_v1_1"}


def test_the_reference_of_blocks_is_the_organisers(build, nano, tmp_path):
    script = tmp_path / "reference-worker"
    script.write_text(f'#!/bin/sh\nexec "{build / "bench-worker"}" "$@" --trusted\n')
    script.chmod(0o755)
    env = {"BENCH_WORKER_DRAFTER": str(ROOT / "models/laguna-nano-dflash")}
    for flags, failed in (([], {"hello_v1_1"}), (["--trusted"], set())):
        found = verdicts(conformance(script, nano, "--json", "--only", "hello_v1_1", *flags, vocab=4096,
                                     env=env))
        assert named(found, "fail") == failed


# ---- one fault each ----

FAULTS = {
    # the hello
    "hello_id": NO_HELLO,
    "hello_version": NO_HELLO,
    "hello_nonce": NO_HELLO,
    "hello_not_ok": NO_HELLO,
    "hello_unknown_key": NO_HELLO,
    "never_says_hello": NO_HELLO,
    "dies_at_once": NO_HELLO,
    "v1_claims": {"hello_v1"},
    "capability_unknown": {"hello_v1_1", "capabilities_derived"},
    "capability_twice": {"hello_v1_1", "capabilities_derived"},
    "replay_claimed": {"hello_v1_1", "capabilities_derived", "replay"},
    "width_missing": {"hello_v1_1", "max_batch_size_derived"},
    "nonce_constant": {"nonce_fresh"},
    # the manifest
    "mode_claimed": {"spec_modes_declared", "spec_echo", "spec_runs"},
    "timing_not_claimed": {"capabilities_derived", "cohort_timing"},
    "width_smaller": {"max_batch_size_derived", "cohort_bounds"},
    "backend_other": {"backend_matches"},
    "no_runner": {"runner_identity_present"},
    "digest_other": {"manifest_digest_matches"},
    # kinds
    "token_is_vocab": {"prefill", "prefill_agrees"},
    "correctness_short": {"correctness"},
    "correctness_one_more": {"correctness_one_step"},
    "logits_seven": {"top_logits"},
    "logits_rise": {"top_logits"},
    "logits_tie_order": {"top_logits"},
    "logits_first_other": {"top_logits"},
    "logits_twice": {"top_logits"},
    "logits_out_of_range": {"top_logits"},
    "decode_feeds_itself": {"decode_agrees", "steps_agree"},
    "v1_differs": {"v1_agrees"},
    "remembers": {"no_memory"},
    # barriers
    "prefill_counted": {"work_untimed"},
    "step_counted_twice": {"work_steps"},
    "work_never_reset": {"work_untimed", "work_steps", "work_reset", "free_run_work", "spec_runs",
                         "cohort_counters"},
    "no_work_reported": {"work_untimed", "work_steps", "work_reset", "v1_agrees", "free_run_work",
                         "free_run_count_0", "spec_runs", "cohort_counters"},
    "dirty_cache": {"cache_drained"},
    "barrier_keeps_sequence": {"step_after_barrier", "run_before_begin"},
    # free runs
    "run_off_by_one": {"free_run", "spec_runs"},
    "run_sum": {"free_run_counters", "spec_runs"},
    "run_accepted": {"free_run_counters", "free_run_count_0", "spec_runs"},
    "run_committed": {"free_run_counters", "free_run_count_0", "spec_runs"},
    "run_counted_more": {"free_run_work", "free_run_count_0", "spec_runs", "cohort_counters"},
    "serial_round_of_many": {"free_run_counters", "spec_runs"},
    "serial_drafts": {"free_run_counters", "spec_runs"},
    "round_beyond_depth": {"spec_runs"},
    "depth_ignored": {"spec_echo"},
    "any_form": {"run_before_begin"},
    "count_0_refused": {"free_run_count_0"},
    "oversize_run_dies": {"free_run_oversize"},
    "v1_runs_free": {"free_run_not_advertised"},
    "echo_missing": {"spec_echo"},
    "echo_depth": {"spec_echo"},
    "any_mode": {"spec_not_advertised"},
    # cohorts
    "cohort_tokens": {"cohort"},
    "cohort_odd_stream": {"cohort"},
    "natural_below": {"cohort_counters"},
    "rounds_disagree": {"cohort_counters"},
    "active_rise": {"cohort_counters"},
    "any_width": {"cohort_bounds"},
    "timing_missing": {"cohort_timing"},
    # lines
    "bad_json_dies": {"malformed_json"},
    "bad_json_hangs": {"malformed_json"},
    "bad_json_silent": {"malformed_json"},
    "cut_json_served": {"truncated_json"},
    "no_object_under_0": {"no_object"},
    "utf8_lenient": {"invalid_utf8"},
    "nesting_dies": {"deep_nesting"},
    "answers_swapped": {"several_in_one_write"},
    "blank_dies": {"blank_line"},
    "cr_refused": {"crlf"},
    "order_matters": {"key_order", "long_line"},
    "short_lines_only": {"long_line", "oversize_prompt"},
    "long_lines_kill": {"long_line", "oversize_prompt", "line_too_long"},
    # refusals
    "kind_ignored": {"unknown_kind"},
    "no_error_text": {"unknown_kind"},
    "refusal_breaks": {"unknown_kind"},
    "key_ignored": {"unknown_key"},
    "true_is_one": {"wrong_type"},
    "field_defaults": {"missing_field"},
    "prompt_token_clamped": {"prompt_token_range"},
    "step_token_clamped": {"step_token_range", "error_drops_sequence"},
    "empty_served": {"empty_prompt"},
    "prompt_cut": {"oversize_prompt"},
    "prompt_dies": {"oversize_prompt"},
    "steps_0_served": {"steps_range"},
    "step_opens": {"step_before_begin", "step_after_barrier", "error_drops_sequence"},
    "steps_shared": {"step_before_begin"},
    "prefill_keeps_sequence": {"step_before_begin"},
    "correctness_keeps_sequence": {"step_before_begin"},
    "refusal_keeps_sequence": {"error_drops_sequence"},
    "ids_through_doubles": {"ids"},
    # around the lines
    "refusal_without_nonce": {"nonce_echo"},
    "id_wrong_once": {"id_echo"},
    "says_it_twice": {"one_reply_each"},
    "chatters": {"stdout_clean"},
    "exits_5": {"end_of_input"},
    "lingers_in_a_line": {"end_inside_a_line"},
    "leaves_a_process": {"nothing_left"},
    "leaves_a_daemon": {"nothing_left"},
    "lingers": {"end_of_input", "end_inside_a_line", "nothing_left"},
}
MARK = f"conformance-{os.getpid()}"  # in the environment of every engine of this run
HANGS = {"never_says_hello", "bad_json_hangs", "bad_json_silent"}


def outcome_of(name):
    """A faulty engine through the kit. Each test runs its own, so that workers share them out."""
    large = [flag for c in LARGE if not FAULTS[name] & set(LARGE) for flag in ("--except", c)]
    env = {f"MLXFAST_{w}_TIMEOUT_S": "3" for w in ("HELLO", "REPLY")} if name in HANGS else {}
    env["BENCH_WORKER_TEST_RUN"] = MARK
    return conformance(UNRULY, WEIGHTS, "--json", "--manifest", WEIGHTS / "manifest.json",
                       "--engine-resource", f"fault={name}", *large, env=env)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check_and_no_other(build, name):
    outcome = outcome_of(name)
    found = verdicts(outcome)
    assert named(found, "fail") == FAULTS[name], outcome.stdout
    if FAULTS[name] == NO_HELLO:
        assert named(found, "pass") == set()


def test_the_kit_leaves_no_process(build):
    """Not the helper that stays in the engine's group, and not the daemon that leaves it."""
    assert verdicts(outcome_of("leaves_a_daemon")) and verdicts(outcome_of("leaves_a_process"))
    for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            assert MARK.encode() not in entry.read_bytes(), entry
        except OSError:  # ended meanwhile, or another user's
            continue


def test_every_fault_of_the_unruly_engine_is_tried(build):
    text = UNRULY.read_text()
    named_there = set(re.findall(r'^(?:\w+_fault|after)\("(\w+)"', text, re.M))
    named_there |= set(re.findall(r"^@fault\nclass (\w+)\(", text, re.M))
    assert named_there - {"processes_differ"} == set(FAULTS)


def test_every_check_can_fail(build):
    """A check that no fault fails would prove nothing; these few need an engine of another kind."""
    everything = set(verdicts(conformance("/bin/false", WEIGHTS, "--json")))
    elsewhere = {"decode", "teacher_forced", "processes_agree", "teacher_forced_agrees", "split_write",
                 "cohort_not_advertised", "replay_not_advertised"}
    assert everything - set().union(*FAULTS.values()) == elsewhere


def test_answers_that_differ_by_process(build, tmp_path):
    found = verdicts(conformance(UNRULY, WEIGHTS, "--json", "--engine-resource",
                                 "fault=processes_differ", "--only", "processes_agree",
                                 env={"TMPDIR": str(tmp_path)}))
    assert found == {"processes_agree": "fail"}


# ---- the program ----


def test_table_for_people(build):
    result = conformance(UNRULY, WEIGHTS, "--engine-resource", "fault=logits_rise", "--only",
                         "top_logits", "--only", "prefill", "--only", "replay")
    assert result.returncode == 1
    assert re.search(r"^prefill +pass +prefill$", result.stdout, re.M)
    assert re.search(r"^top_logits +fail", result.stdout, re.M)
    assert "FAILED top_logits: top_logits rise at entry 3" in result.stdout
    assert "skipped replay: the hello does not advertise cohort_reference_replay" in result.stdout
    assert result.stdout.endswith("1 passed, 1 failed, 1 skipped\n")


@pytest.mark.parametrize("flags, says", [
    (["--only", "no_such_check"], "there is no check of this name"),
    (["--except", "no_such_check"], "there is no check of this name"),
    (["--vocab", "509"], "USAGE"),
    (["--contract", "/nowhere.json"], "USAGE"),
    (["--engine-resource", "nameless"], "NAME=PATH"),
    (["--manifest", "/nowhere.json"], "/nowhere.json"),
])
def test_misuse(build, flags, says):
    result = conformance(UNRULY, WEIGHTS, *flags)
    assert result.returncode == 2 and says in result.stderr and result.stdout == ""


def test_needs_a_vocabulary(build):
    result = conformance(UNRULY, WEIGHTS, vocab=None)
    assert result.returncode == 2 and "--seed-tokens" in result.stderr


def test_an_interrupt_leaves_nothing(build, tmp_path):
    log = tmp_path / "pid"
    engine = tmp_path / "sleeper"
    engine.write_text(f'#!/bin/sh\necho $$ > "{log}.new" && mv "{log}.new" "{log}"\nexec sleep 1000\n')
    engine.chmod(0o755)
    process = subprocess.Popen([BUILD / "benchd", "conformance", "--engine", engine, "--weights",
                                WEIGHTS, "--vocab", "509", "--seed-tokens", "8"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == "" and "Interrupted" in err
    assert group_members(int(log.read_text())) == []


def test_the_page_lists_every_check(build):
    checks = json.loads(conformance("/bin/false", WEIGHTS, "--json").stdout)["checks"]
    page = (ROOT / "docs/conformance.md").read_text()
    rows = "".join(f"| `{c['name']}` | {c['section']} | {c['rule']} |\n" for c in checks)
    assert rows in page, "docs/conformance.md: the table of checks is not the program's"
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/writing-an-engine.md").read_text(), re.M)
    assert {c["section"] for c in checks} <= set(headings)


def test_an_engine_that_never_begins_tells_why(tmp_path):
    """Its own last words are in the verdict: its author has nothing else to go by."""
    engine = tmp_path / "engine.sh"
    engine.write_text("#!/bin/sh\necho cannot open the moon >&2\nexit 4\n")
    engine.chmod(0o755)
    result = subprocess.run([str(BUILD / "benchd"), "conformance", "--engine", str(engine),
                             "--weights", str(tmp_path), "--vocab", "64", "--seed-tokens", "16",
                             "--json"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "exit status 4" in result.stdout and "cannot open the moon" in result.stdout
