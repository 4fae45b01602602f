"""The DFlash track of laguna-nano: its files fit together and are screened, a golden of it can be made
again byte for byte, and the engine that ships passes it."""

import array
import hashlib
import json
import pathlib

import pytest

from conftest import ROOT

TRACK = ROOT / "tracks" / "laguna-nano-dflash-v1"
SERIAL = ROOT / "tracks" / "laguna-nano-serial-v1"
DRAFTER = ROOT / "models" / "laguna-nano-dflash"
CONTRACT = json.loads((TRACK / "contract.json").read_text())
BLOCKS, POOL = CONTRACT["block_decode"], CONTRACT["timed_prompt_pool"]
NAMES = [pathlib.Path(e["path"]).name.removesuffix(".golden.json") for e in POOL]
NOOP = json.loads((TRACK / "noop.json").read_text())


def prompt_ids(path):
    return [int(t) for t in path.read_text().split()]


def golden(name):
    return json.loads((TRACK / "pool" / f"{name}.golden.json").read_text())


def test_the_pool_is_eight_distinct_prompts_of_no_other_track():
    assert len(POOL) == len({e["sha256"] for e in POOL}) == len({e["path"] for e in POOL}) == 8
    pool = {tuple(prompt_ids(p)) for p in (TRACK / "prompts").glob("*.txt")}
    public = {tuple(prompt_ids(p)) for p in (TRACK / "prompts" / "public").glob("*.txt")}
    serial = {tuple(prompt_ids(p)) for p in (SERIAL / "prompts").glob("*.txt")}
    assert len(pool) == 8 and len(public) == 2 and not pool & public and not (pool | public) & serial


def test_the_window_fits_the_models_context(nano):
    context = json.loads((nano / "config.json").read_text())["max_position_embeddings"]
    assert CONTRACT["seed_tokens"] + BLOCKS["maximum_decode_tokens"] + BLOCKS["maximum_block_size"] <= context


@pytest.mark.parametrize("entry, name", list(zip(POOL, NAMES)), ids=NAMES)
def test_a_pool_golden_is_pinned_and_screened(entry, name):
    data = (TRACK / entry["path"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"] and len(data) == entry["bytes"]
    g = json.loads(data)
    assert g["seed_tokens"] == prompt_ids(TRACK / "prompts" / f"{name}.txt")
    assert g["reference_self_consistent"] is True
    assert len(g["emitted_tokens"]) == len(g["rows"]) == BLOCKS["decode_tokens"]
    # The screen: not a list of few words, and near-ties that tell a sloppy engine from an exact one.
    gaps = [r["top2_logits"][0] - r["top2_logits"][1] for r in g["rows"]]
    assert len(set(g["seed_tokens"])) / len(g["seed_tokens"]) >= 0.40
    assert min(gaps) < 0.25 and min(gaps) <= 1.0
    # One arithmetic: every frame gives what serial decoding gives.
    for row in g["rows"]:
        assert row["sequential_argmax"] == row["emitted_token"] == row["top2_tokens"][0]
        assert set(row["declared_frame_argmax"].values()) <= {row["sequential_argmax"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_ngram_screen_is_reported(build, run, name):
    """SCREEN.md's figure is that of the judge's own command."""
    result = run([build / "benchd", "analyze-ngram-similarity", "--golden",
                  TRACK / "pool" / f"{name}.golden.json", "--max-hit-rate", "1"])
    assert result.returncode == 0, result.stderr
    rate = json.loads(result.stdout)["longest_match_most_recent_hit_rate"]
    (row,) = [line for line in (TRACK / "SCREEN.md").read_text().splitlines() if f"| {name} |" in line]
    assert float(row.rsplit("=", 1)[1].strip(" |")) == pytest.approx(rate, abs=0.0005)


def test_no_seed_ends_in_a_near_tie(build, run, tmp_path):
    """The token after the seed is compared exactly: an honest build must not be refused for it."""
    gaps = {}
    for line in (TRACK / "SCREEN.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0] in NAMES:
            gaps[cells[0]] = float(cells[4])
        elif cells[0] == "prompt":
            assert cells[4] == "seed row's gap"
    assert set(gaps) == set(NAMES)
    assert min(gaps.values()) > CONTRACT["fidelity"]["near_tie_logits"]
    nearest = min(gaps, key=gaps.get)
    result = run([build / "bench-worker", "logits", "--weights", ROOT / "models" / "laguna-nano",
                  "--tokens-file", TRACK / "prompts" / f"{nearest}.txt", "--out", tmp_path / "logits"])
    assert result.returncode == 0, result.stderr
    row = array.array("f", (tmp_path / "logits").read_bytes())[-CONTRACT["vocab_size"]:]
    first, second = sorted(row, reverse=True)[:2]
    assert first - second == pytest.approx(gaps[nearest], abs=0.00005)


def test_the_normalisers_are_the_measured_ones():
    assert NOOP["decode_tokens"] == BLOCKS["decode_tokens"] and NOOP["block_size"] == BLOCKS["block_size"]
    assert set(NOOP["prompts"]) == set(NAMES)
    for entry, name in zip(POOL, NAMES):
        measured = NOOP["prompts"][name]
        assert entry["noop_decode_speedup"] == measured["noop_decode_speedup"]
        assert measured["pairs"] >= 8 and measured["lowest_pair"] <= measured["median_pair"] <= measured["highest_pair"]
        assert BLOCKS["raw_speedup_min"] < entry["noop_decode_speedup"] < BLOCKS["raw_speedup_max"]


def test_the_tolerances_are_measured_ones():
    conditions = CONTRACT["fidelity"]["conditions"]
    limit = CONTRACT["fidelity"]["work_binding_absolute"]
    assert conditions["largest_honest_drift"] <= limit < conditions["nearest_cheat"]
    assert conditions["measured_with"].startswith("benchd calibrate-fidelity")


def test_the_pinned_files_are_those_that_ship(nano):
    for manifest, folder in (("target.sha256", nano), ("drafter.sha256", DRAFTER)):
        rows = [line.split() for line in (TRACK / manifest).read_text().splitlines() if not line.startswith("#")]
        assert rows
        for digest, size, name in rows:
            data = (folder / name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest and len(data) == int(size)
    assert CONTRACT["assistant"]["expected_bytes"] == sum(
        (DRAFTER / n).stat().st_size for n in ("config.json", "model.safetensors"))


def test_a_pool_golden_is_recorded_again_byte_for_byte(build, run, nano, tmp_path):
    name = "ethics-aurelius"
    emitted, out = tmp_path / "emitted.json", tmp_path / "again.json"
    emitted.write_text(json.dumps({"seed_tokens": prompt_ids(TRACK / "prompts" / f"{name}.txt")}))
    result = run([build / "benchd", "dflash-reference", "--engine", build / "bench-worker", "--weights", nano,
                  "--drafter", DRAFTER, "--contract", TRACK / "contract.json", "--emitted", emitted,
                  "--generate", BLOCKS["decode_tokens"], "--output", out, "--quiet"], timeout=500)
    assert result.returncode == 0, result.stderr
    assert out.read_bytes() == (TRACK / "pool" / f"{name}.golden.json").read_bytes()


def test_serial_decoding_gives_the_goldens_tokens(build, run, nano, tmp_path):
    """Another way to the same tokens: the recorder's teacher-forced serial session."""
    name = "politics-hobbes"
    out = tmp_path / "serial.json"
    result = run([build / "record-correctness-golden", "--worker-bin", build / "bench-worker", "--weights", nano,
                  "--contract", TRACK / "contract.json", "--out", out, "--prompt-tokens",
                  TRACK / "prompts" / f"{name}.txt", "--case-name", name, "--steps",
                  BLOCKS["decode_tokens"] + 1, "--quiet"], timeout=500)
    assert result.returncode == 0, result.stderr
    g = golden(name)
    assert json.loads(out.read_text())["cases"][0]["expected_tokens"] == \
        [g["reference_seed_token"], *g["emitted_tokens"]]


def test_the_public_golden_is_passed(build, run, nano, tmp_path):
    report = tmp_path / "report.json"
    result = run([build / "benchd", "correctness", "--engine", build / "bench-worker", "--weights", nano,
                  "--golden", TRACK / "public.golden.json", "--contract", TRACK / "contract.json", "--report",
                  report, "--quiet"], timeout=500)
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    assert found["passed"] is True and found["diverged"] == [] and found["run_count"] >= 12
    public = json.loads((TRACK / "public.golden.json").read_text())
    assert {tuple(c["prompt_tokens"]) for c in public["cases"]} == \
        {tuple(prompt_ids(p)) for p in (TRACK / "prompts" / "public").glob("*.txt")}


def test_a_prompt_can_be_drawn(build, run):
    result = run([build / "benchd", "draw-prompt", "--contract", TRACK / "contract.json", "--pool-dir",
                  TRACK / "pool", "--json"])
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["sha256"] in {e["sha256"] for e in POOL}
