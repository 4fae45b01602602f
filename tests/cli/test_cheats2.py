"""What a second look for ways around the judge of block decoding found: reports edited before they are scored, labels
that flatter, outputs that replace inputs, engines that read what they should not, prompts that were not run whole.
docs/cheats.md tells of each."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT
from dflash_kit import TOY, BlockKit
from judge_kit import DEADLINES
from test_cheats import CHEATS, DRAFTER, NANO, Track

TOKENS_SCORED = 32


@pytest.fixture(scope="module")
def track(tmp_path_factory):
    return Track(tmp_path_factory.mktemp("toy"))


# ---- Reports edited before they are scored ----

@pytest.fixture(scope="module")
def legs(build, tmp_path_factory):
    """A probe and a benchmark at fixed times, and a folder to score them in."""
    kit = BlockKit(tmp_path_factory.mktemp("legs"))
    kit.write_contract(decode_speedup_floor=0.95)
    kit.reference()
    made = []
    for command, seconds in ((kit.probe, 0.5), (kit.benchmark, 0.25)):
        report = kit.report(command("--tokens", TOKENS_SCORED))
        made.append({**report, "parent_measured_seconds_per_token": seconds,
                     "decode_seconds": seconds * TOKENS_SCORED})
    return kit, *made


def score(kit, folder, pairs, *extra, to="score.json"):
    arguments = []
    for i, (probe, benchmark) in enumerate(pairs):
        for name, report in (("probe", probe), ("benchmark", benchmark)):
            path = folder / f"{name}{i}.json"
            path.write_text(json.dumps(report))
            arguments += [f"--{name}", path]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
    return subprocess.run(
        [str(a) for a in (BUILD / "benchd", "dflash-score", "--contract", kit.contract, "--golden",
                          kit.golden, "--mode", "dflash-local-iterate", "--score-path",
                          folder / to, "--tripwire", "passed", *arguments, *extra)],
        capture_output=True, text=True, timeout=60, env=clean, cwd=folder)


def rounds(report, count):
    """Another number of rounds, with every sum that follows from it."""
    declared = report["accepted_draft_total"] + report["rejected_draft_total"] + count
    behind = declared - TOKENS_SCORED
    return {"round_count": count, "target_tail_total": count, "declared_rows_total": declared,
            "verify_block_replayed_round_count": count, "rejected_rows_reference_checked": behind,
            "rejected_tail_comparison_count": 2 * behind}


def drafts(report, accepted, rejected):
    changed = {**report, "accepted_draft_total": accepted, "rejected_draft_total": rejected,
               "accepted_draft_rate": accepted / (accepted + rejected)}
    return {**changed, **rounds(changed, report["round_count"])}


def classes(exact, near, residual):
    return {"admissible_exact_count": exact, "admissible_declared_frame_count": 0,
            "admissible_near_tie_count": near, "residual_divergence_count": residual,
            "all_tokens_matched": exact == TOKENS_SCORED}


EDITS = {  # of 32 tokens: 2 near ties and 1 residual are the budget
    "near ties beyond the budget": (lambda r: classes(29, 3, 0), "admissible_near_tie_count"),
    "residuals beyond the budget": (lambda r: classes(30, 0, 2), "residual_divergence_count"),
    "rounds that hold no such rows": (lambda r: rounds(r, 1), "round_count"),
    "more rounds than tokens": (lambda r: rounds(r, 33), "round_count"),
    "all drafts accepted, wider than the block": (
        lambda r: drafts(r, 200, 0), "declared_rows_total"),
    "rows left unchecked": (lambda r: {"rejected_rows_reference_checked": 0,
                                       "rejected_tail_comparison_count": 0},
                            "rejected_rows_reference_checked"),
    "nothing compared": (lambda r: {"work_binding_comparison_count": 0},
                         "work_binding_comparison_count"),
    "beyond the tolerance": (lambda r: {"max_top2_logit_delta": 9.0}, "max_top2_logit_delta"),
    "tail beyond the tolerance": (lambda r: {"max_rejected_tail_logit_delta": 50.0},
                                  "max_rejected_tail_logit_delta"),
    "a stall hidden": (lambda r: {"max_over_median_round_latency": 1.0},
                       "max_over_median_round_latency"),
    "rounds longer than the run": (lambda r: {"p50_block_request_seconds": 5.0,
                                              "max_block_request_seconds": 5.0},
                                   "p50_block_request_seconds"),
    "times without bound": (lambda r: {"parent_measured_seconds_per_token": 1.7e308,
                                       "decode_seconds": 1.0}, "decode_seconds"),
    "a judge of one's own naming": (lambda r: {"reference_engine": "the organiser's"},
                                    "reference_engine"),
    "another prompt": (lambda r: {"golden_sha256": "0" * 64}, "golden_sha256"),
    "other weights": (lambda r: {"weights_sha256": "0" * 64}, "weights_sha256"),
    "another drafter": (lambda r: {"drafter_sha256": "0" * 64}, "drafter_sha256"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_report_that_contradicts_itself_or_its_pair_is_not_scored(legs, tmp_path, name):
    kit, probe, benchmark = legs
    edit, field = EDITS[name]
    result = score(kit, tmp_path, [(probe, {**benchmark, **edit(benchmark)})])
    assert result.returncode == 2 and "BLOCK-REPORT-INVALID: " in result.stderr, result.stderr
    assert f"field {field}" in result.stderr, result.stderr
    assert not (tmp_path / "score.json").exists()


def test_edits_within_every_rule_are_still_believed(legs, tmp_path):
    """What no report shows: the times, and classes within the budget. A local score is worth what its maker is."""
    kit, probe, benchmark = legs
    result = score(kit, tmp_path, [(probe, {**benchmark, **classes(30, 1, 1)})])
    assert result.returncode == 0, result.stderr


def test_a_serial_control_with_drafts_is_none(legs, tmp_path):
    kit, probe, benchmark = legs
    for change in (drafts(probe, 5, 0), {**probe, **rounds(probe, 3)}):
        result = score(kit, tmp_path, [({**change}, benchmark)])
        assert result.returncode == 2 and "BLOCK-REPORT-INVALID" in result.stderr, result.stderr


def test_one_measurement_is_one_pair(legs, tmp_path):
    kit, probe, benchmark = legs
    result = score(kit, tmp_path, [(probe, benchmark)] * 2)
    assert result.returncode == 2 and "given for two pairs" in result.stderr
    other = {**probe, "decode_seconds": 12.8, "parent_measured_seconds_per_token": 0.4}
    result = score(kit, tmp_path, [(probe, benchmark), (other, benchmark)])
    assert result.returncode == 2 and "benchmark1.json" in result.stderr
    again = {**benchmark, "decode_seconds": 6.4, "parent_measured_seconds_per_token": 0.2}
    result = score(kit, tmp_path, [(probe, benchmark), (other, again)])
    assert result.returncode == 0, result.stderr


def test_the_weights_that_are_sealed_are_those_that_ran(legs, tmp_path):
    kit, probe, benchmark = legs
    others = tmp_path / "others"
    shutil.copytree(kit.weights, others)
    (others / "more.bin").write_bytes(b"more")
    result = score(kit, tmp_path, [(probe, benchmark)], "--weights", others)
    assert result.returncode == 2 and "weights_sha256" in result.stderr
    result = score(kit, tmp_path, [(probe, benchmark)], "--weights", kit.weights)
    assert result.returncode == 0, result.stderr


def test_a_tripwire_that_compared_nothing_has_not_passed(legs, tmp_path):
    kit, probe, benchmark = legs
    path = tmp_path / "tripwire.json"
    good = {"passed": True, "case_count": 2, "run_count": 2, "error": "", "diverged": []}
    for change in ({"case_count": 0}, {"error": "it did not run"}):
        path.write_text(json.dumps({**good, **change}))
        result = score(kit, tmp_path, [(probe, benchmark)], "--tripwire-report", path)
        assert result.returncode == 2 and "BLOCK-REPORT-INVALID" in result.stderr
    path.write_text(json.dumps(good))
    assert score(kit, tmp_path, [(probe, benchmark)], "--tripwire-report", path).returncode == 0


# ---- Who judged ----

def test_an_engine_that_judges_itself_is_called_so_under_any_name(legs, tmp_path):
    kit, probe, benchmark = legs
    copy = tmp_path / "organiser.py"
    shutil.copy(TOY, copy)
    assert benchmark["reference_engine"] == "the engine itself"
    for reference in (TOY, copy):
        report = kit.report(kit.benchmark("--reference-engine", reference))
        assert report["reference_engine"] == "the engine itself"
    copy.write_text(TOY.read_text() + "# another file\n")
    report = kit.report(kit.benchmark("--reference-engine", copy))
    assert report["reference_engine"] == "another engine"
    for judge, label in (("another engine", "the engine itself"), ("another engine",) * 2):
        pair = [{**r, "reference_engine": j} for r, j in ((probe, judge), (benchmark, label))]
        assert score(kit, tmp_path, [pair]).returncode == 0
        metrics = json.loads((tmp_path / "score.json").read_text())["metrics"]
        assert metrics["reference_engine"] == label


def test_an_engine_in_league_with_itself(track, tmp_path):
    """judge_in_league.py: believed only where it is its own judge, and the report and the score say who judged."""
    report, result = track.run("judge_in_league.py")
    assert result.returncode == 1 and report["error"] == "dflash_token_not_admissible"
    said = track.benchd("dflash-benchmark", "--engine", CHEATS / "judge_in_league.py", "--golden",
                        track.golden["known"])
    report = json.loads(said.stdout)
    assert report["all_tokens_matched"] and report["accepted_draft_rate"] == 1.0
    assert report["reference_engine"] == "the engine itself"
    assert report["official_score_produced"] is False


def test_a_report_says_what_ran(legs):
    kit, _, benchmark = legs
    assert benchmark["golden_sha256"] == hashlib.sha256(kit.golden.read_bytes()).hexdigest()
    for key, folder in (("weights_sha256", kit.weights), ("drafter_sha256", kit.drafter)):
        said = subprocess.run([BUILD / "benchd", "weights-digest", "--weights", folder],
                              capture_output=True, text=True, check=True).stdout
        assert said.startswith(benchmark[key] + ":")


# ---- Outputs that would replace inputs ----

def test_no_output_replaces_what_is_read(legs, tmp_path):
    kit, probe, benchmark = legs
    golden, contract = tmp_path / "golden.json", kit.contract
    shutil.copy(kit.golden, golden)
    link = tmp_path / "hard.json"
    os.link(golden, link)
    emitted = tmp_path / "emitted.json"
    shutil.copy(kit.emitted, emitted)
    new = tmp_path / "new.json"
    before = {p: p.read_bytes() for p in (golden, contract, emitted)}
    leg = ("--golden", golden)
    make = ("--emitted", emitted, "--generate", 4, "--seed-generate", 24)
    for command, arguments in (
            ("dflash-benchmark", (*leg, "--output", golden)),
            ("dflash-benchmark", (*leg, "--output", link)),
            ("dflash-probe", (*leg, "--output", contract)),
            ("dflash-reference", (*make, "--output", emitted)),
            ("dflash-reference", (*make, "--output", new, "--plan-output", emitted)),
            ("dflash-reference", (*make, "--output", new, "--plan-output",
                                  tmp_path / "." / "new.json"))):
        result = kit.run(command, *arguments)
        assert result.returncode == 2 and "USAGE: the output would replace" in result.stderr
    assert before == {p: p.read_bytes() for p in before} and not new.exists()
    path = tmp_path / "probe0.json"
    result = score(kit, tmp_path, [(probe, benchmark)], to="probe0.json")
    assert result.returncode == 2 and "--score-path" in result.stderr
    assert json.loads(path.read_text()) == probe


# ---- The pool ----

def test_one_prompt_in_two_spellings_is_no_pool(legs, tmp_path):
    kit = legs[0]
    golden = json.loads(kit.golden.read_text())

    def draw(texts):
        entries = []
        for i, text in enumerate(texts):
            (tmp_path / f"{i}.json").write_text(text)
            entries.append({"path": f"pool/{i}.json", "bytes": len(text), "noop_decode_speedup": 1.1,
                            "sha256": hashlib.sha256(text.encode()).hexdigest()})
        contract = tmp_path / "contract.json"
        contract.write_text(json.dumps({"track_id": "t-v1", "timed_prompt_pool": entries}))
        return subprocess.run(
            [BUILD / "benchd", "draw-prompt", "--contract", contract, "--pool-dir", tmp_path],
            capture_output=True, text=True, timeout=60)

    prompts = [{**golden, "seed_tokens": [i, *golden["seed_tokens"][1:]]} for i in range(9)]
    assert draw([json.dumps(p) for p in prompts]).returncode == 0
    result = draw([*(json.dumps(p) for p in prompts), json.dumps(prompts[4], indent=1)])
    assert result.returncode == 1 and "POOL-INVALID: " in result.stderr, result.stderr
    assert "timed_prompt_pool[9].path" in result.stderr and result.stdout == ""


# ---- Engines ----

def test_the_golden_behind_the_command_line(track):
    """golden_from_parent.py: without the sandbox every draft is right; in it the engine is the honest one."""
    report, result = track.run("golden_from_parent.py")
    assert result.returncode == 0 and report["accepted_draft_rate"] > 0.9
    sandbox_or_skip(track.folder)
    report, result = track.run("golden_from_parent.py", "known", "--engine-tree", CHEATS,
                               sandbox=True)
    assert result.returncode == 0, result.stderr
    assert report["accepted_draft_rate"] == track.honest()["accepted_draft_rate"]


def sandbox_or_skip(*folders):
    """Of a test that needs one; an engine in it is another user, who must be able to read these."""
    probe = subprocess.run([BUILD / "benchd", "probe-sandbox"], capture_output=True, timeout=60)
    if probe.returncode != 0:
        pytest.skip("needs a sandbox, and none can be built here")
    for folder in folders:
        for part in (folder, *folder.parents[:2]):
            part.chmod(0o755)


# Each puts what it has read of the prompt into another part of what the judge might say.
CARRIERS = {
    "error": "raise Refused('out of ' + letters)",
    "key": "return {'seed_token': 1, letters: 1}",
    "value": "return {'seed_token': letters}",
    "nonce": "return {'seed_token': 1, 'nonce': letters}",
    "id": "return {'seed_token': 1, 'id': number}",
    "line": "sys.stdout.write(letters + '\\n'); return {'seed_token': 1, 'extra': letters}",
    "log": "sys.stderr.write(letters + '\\n'); sys.stderr.flush(); raise Refused(letters)",
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_an_official_run_says_nothing_in_the_engines_words(track, tmp_path, carrier):
    """error_text_spelt.py and its like. Engine, Json, NonceMismatch, Protocol; locally the words are shown."""
    engine = tmp_path / "engine.py"
    engine.write_text(
        f"#!/usr/bin/python3\nimport sys\nsys.path.insert(0, {str(CHEATS)!r})\n"
        "from toy_engine import Engine, Refused, serve\n\n\nclass Cheat(Engine):\n"
        "    def answer(self, q):\n        if q['kind'] != 'dflash_decode_begin':\n"
        "            return super().answer(q)\n"
        "        letters = ''.join(chr(97 + t // 16) + chr(97 + t % 16) for t in q['seed_tokens'])\n"
        "        number = int(''.join('%02d' % t for t in q['seed_tokens'][:9]))\n"
        f"        {CARRIERS[carrier]}\n\n\nserve(Cheat)\n")
    engine.chmod(0o755)
    seed = json.loads(track.golden["known"].read_text())["seed_tokens"]
    letters = "".join(chr(97 + t // 16) + chr(97 + t % 16) for t in seed)
    number = str(int("".join("%02d" % t for t in seed[:9])))

    def told(*how, **env):
        result = subprocess.run(
            [str(a) for a in (BUILD / "benchd", "dflash-benchmark", "--engine", engine,
                              "--reference-engine", TOY, "--weights", track.weights, "--drafter",
                              track.drafter, "--contract", track.contract, "--golden",
                              track.golden["known"], *how)],
            capture_output=True, text=True, timeout=60, env={**os.environ, **env})
        assert result.returncode == 1
        assert json.loads(result.stdout)["error"] in ("Engine", "Json", "NonceMismatch", "Protocol")
        return result.stdout + result.stderr

    if carrier in ("error", "key", "log"):
        assert letters[:8] in told("--no-sandbox")
    sandbox_or_skip(track.folder, tmp_path)
    said = told("--engine-tree", CHEATS, MLXFAST_OFFICIAL_BENCHMARK_RUN="1")
    assert letters[:8] not in said and number not in said, said


def test_what_two_logits_do_not_show(track):
    """second_invented.py makes up second ids, logits_shifted.py errs by less than the tolerance."""
    for cheat in ("second_invented.py", "logits_shifted.py"):
        report, result = track.run(cheat)
        assert result.returncode == 0 and report["all_tokens_matched"], result.stderr
        assert report["round_count"] == track.honest()["round_count"]


# ---- The real engine, by its track's own limits ----

NANO_TRACK = ROOT / "tracks" / "laguna-nano-dflash-v1"


def proxied(cheat, tokens=128, prompt="adventure-twain", **env):
    worker = BUILD / "bench-worker"
    env = {f"BENCH_WORKER_{key.upper()}": str(value) for key, value in env.items()}
    result = subprocess.run(
        [str(a) for a in (BUILD / "benchd", "dflash-benchmark", "--engine", CHEATS / "proxy.py",
                          "--reference-engine", worker, "--weights", NANO, "--drafter", DRAFTER,
                          "--contract", NANO_TRACK / "contract.json", "--golden",
                          NANO_TRACK / "pool" / f"{prompt}.golden.json", "--tokens", tokens,
                          "--no-sandbox", "--quiet")], capture_output=True, text=True, timeout=120,
        env={**os.environ, **DEADLINES, **env, "BENCH_WORKER_PROXIED": str(worker),
             "BENCH_WORKER_CHEAT": cheat, "PYTHONDONTWRITEBYTECODE": "1"})
    return json.loads(result.stdout), result


def test_a_prompt_that_was_not_run_whole():
    """PromptTrimmed. dflash_work_binding_logit_mismatch by the mean, where a quarter of the prompt is left out; a few
    of its tokens are not missed: docs/cheats.md, not caught."""
    report, result = proxied("PromptTrimmed", trimmed=0)
    assert result.returncode == 0 and report["max_top2_logit_delta"] == 0, result.stderr
    report, result = proxied("PromptTrimmed", trimmed=128)
    assert report["error"] == "dflash_work_binding_logit_mismatch" and result.returncode == 1
    assert "mean_over=" in result.stderr
    report, result = proxied("PromptTrimmed", trimmed=16)
    assert result.returncode == 0 and report["mean_top2_logit_delta"] > 0, result.stderr


def test_near_ties_chosen_for_speed():
    """NearTiesChosen: accepted up to the budget of 6 in 128 tokens; refused where wider gaps are taken for ties."""
    contract = json.loads((NANO_TRACK / "contract.json").read_text())
    gap = contract["fidelity"]["near_tie_logits"]
    honest = proxied("Proxy")[0]
    report, result = proxied("NearTiesChosen", near_ties=6, near_tie_logits=gap)
    assert result.returncode == 0, result.stderr
    assert 1 <= report["admissible_near_tie_count"] <= 6
    assert report["round_count"] < honest["round_count"]
    report, result = proxied("NearTiesChosen", near_ties=99, near_tie_logits=8 * gap)
    assert report["error"] == "dflash_residual_budget_exhausted" and result.returncode == 1
