"""bench-worker generate and logits: what people see, files, interrupts, bad input."""

import json
import os
import re
import signal
import struct
import subprocess

import pytest

from conftest import ROOT, said

VECTOR = ROOT / "tests/vectors/laguna/equal-bias"
NO_TOKENIZER = ROOT / "tests/vectors/laguna/full-yarn"


@pytest.fixture
def worker(build):
    return build / "bench-worker"


def generated(run, worker, weights, *flags):
    result = run([worker, "generate", "--weights", weights, "--json", *flags])
    assert result.returncode == 0, result.stderr
    assert said(result.stderr) == ""
    return json.loads(result.stdout)


# --- generate ------------------------------------------------------------------------------------


def test_json_object(run, worker, nano):
    out = generated(run, worker, nano, "--prompt", "The sea was calm", "-n", "24", "--threads", "1")
    assert sorted(out) == ["bytes_per_token", "choices", "decode_seconds", "decode_tokens_per_second",
                           "engine", "memory", "model_type", "prefill_seconds", "prefill_tokens_per_second",
                           "prompt_ids", "stop_reason", "text", "token_ids"]
    assert out["prompt_ids"][0] == 2, "the tokenizer's template puts the bos first"
    assert out["prompt_ids"].count(2) == 1
    assert len(out["token_ids"]) == 24 and out["stop_reason"] == "length"
    assert out["prefill_seconds"] > 0 and out["decode_seconds"] > 0
    assert out["choices"] == "yarn magnitude 1 (attention_factor)"
    assert out["text"] and "�" not in out["text"]
    memory = out["memory"]
    assert memory["profile"] in ("full", "low")
    assert 10_000_000 < memory["resident_bytes"] <= memory["peak_bytes"] < 1_000_000_000
    # The same tokens again from ids, and with other threads and instruction set.
    again = generated(run, worker, nano, "--prompt", "The sea was calm", "-n", "24", "--threads",
                      "2", "--cpu", "portable")
    assert again["token_ids"] == out["token_ids"] and again["text"] == out["text"]


# --- a drafter -----------------------------------------------------------------------------------


def test_drafter_changes_no_token(run, worker, nano):
    flags = ["--prompt", "It was a dark night", "-n", "60"]
    serial = generated(run, worker, nano, *flags)
    drafter = ["--drafter", ROOT / "models/laguna-nano-dflash"]
    for block in ["1", "2", "5", "16", None]:
        out = generated(run, worker, nano, *flags, *drafter, *(["--block", block] if block else []))
        assert out["token_ids"] == serial["token_ids"] and out["text"] == serial["text"]
        assert out["rounds"] + out["accepted"] == 59, "the first token belongs to no round"
        assert out["drafted"] >= out["accepted"]
        positions = out["acceptance_by_position"]
        assert sum(p["accepted"] for p in positions) == out["accepted"]
        for before, after in zip(positions, positions[1:]):
            assert before["offered"] >= before["accepted"] >= after["offered"]
        if block:
            assert len(positions) <= int(block) - 1
        if block == "1":
            assert out["rounds"] == 59 and out["drafted"] == 0
        if block == "5":
            assert out["accepted"] > 59 // 3, "a trained drafter is right more often than not"
    assert "rounds" not in serial


def test_drafter_line_for_people(run, worker, nano):
    result = run([worker, "generate", "--weights", nano, "--prompt", "It was", "-n", "20",
                  "--drafter", ROOT / "models/laguna-nano-dflash", "--block", "4"])
    assert result.returncode == 0
    assert re.search(r"^drafter: \d+ rounds, [\d.]+ tokens per round; \d+ of \d+ drafts accepted$",
                     result.stderr, flags=re.M)


@pytest.mark.parametrize("flags, status, name", [
    (["--block", "4"], 2, "--block needs --drafter"),
    (["--drafter", "models/laguna-nano-dflash", "--block", "17"], 2, "badValue(--block)"),
    (["--drafter", "models/laguna-nano-dflash", "--block", "0"], 2, "badValue(--block)"),
    (["--drafter", "/nonexistent"], 1, "CHECKPOINT-MISSING-FILE"),
    (["--drafter", "models/laguna-nano"], 1, "CONFIG-INVALID"),
    (["--drafter", "tests/vectors/dflash/wrap"], 1, "CONFIG-INVALID"),
])
def test_drafters_refused(run, worker, nano, flags, status, name):
    result = run([worker, "generate", "--weights", nano, "--prompt", "x", *flags], cwd=ROOT)
    assert result.returncode == status and result.stdout == ""
    assert said(result.stderr).count("\n") == 1 and name in result.stderr


def test_block_wider_than_the_drafters(run, worker, nano, tmp_path):
    config = json.loads((ROOT / "models/laguna-nano-dflash/config.json").read_text())
    config["block_size"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = (ROOT / "models/laguna-nano-dflash/model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights)
    flags = ["generate", "--weights", nano, "--prompt", "x", "-n", "4", "--drafter", tmp_path]
    assert run([worker, *flags, "--block", "4"]).returncode == 0
    result = run([worker, *flags, "--block", "5"])
    assert result.returncode == 1 and "BLOCK-TOO-WIDE" in result.stderr


def test_text_streams_and_speeds_go_to_stderr(run, worker, nano):
    result = run([worker, "generate", "--weights", nano, "--prompt", "It was", "-n", "12"])
    out = generated(run, worker, nano, "--prompt", "It was", "-n", "12")
    assert result.returncode == 0
    assert result.stdout == out["text"] + "\n"
    assert re.search(r"prefill \d+ tokens, [\d.]+ per second; decode 12 tokens, [\d.]+ per second; "
                     r"length; cpu ", result.stderr)


def test_prompt_sources_agree(run, worker, nano, tmp_path):
    text = "Call me Ishmael.\r\nSome years ago — never mind how long…\n\n  precisely 🐋"
    (tmp_path / "prompt.txt").write_bytes(text.encode())
    flag = generated(run, worker, nano, "--prompt", text, "-n", "5")
    file = generated(run, worker, nano, "--prompt-file", tmp_path / "prompt.txt", "-n", "5")
    (tmp_path / "ids.json").write_text(json.dumps(flag["prompt_ids"]))
    ids = generated(run, worker, nano, "--tokens-file", tmp_path / "ids.json", "-n", "5")
    (tmp_path / "ids.txt").write_text(" ".join(map(str, flag["prompt_ids"])))
    plain = generated(run, worker, nano, "--tokens-file", tmp_path / "ids.txt", "-n", "5")
    for other in (file, ids, plain):
        assert other["prompt_ids"] == flag["prompt_ids"]
        assert other["token_ids"] == flag["token_ids"] and other["text"] == flag["text"]


def test_user_text_never_becomes_a_control_token(run, worker, nano):
    tokenizer = json.loads((nano / "tokenizer.json").read_text())
    special = {t["id"] for t in tokenizer["added_tokens"]}
    for token in tokenizer["added_tokens"]:
        out = generated(run, worker, nano, "--prompt", f"a {token['content']} b", "-n", "1")
        assert not special & set(out["prompt_ids"][1:]), token["content"]


def test_stops_at_any_id_of_the_stop_set(run, worker, tmp_path):
    """The second id of eos_token_id, and one that only generation_config.json names."""
    tokens = tmp_path / "ids"
    tokens.write_text("3 1 4 1 5 9 2 6")
    config = json.loads((VECTOR / "config.json").read_text())

    def made(name, config_eos, generation_eos):
        folder = tmp_path / name
        folder.mkdir()
        for path in VECTOR.iterdir():
            if path.suffix in (".safetensors", ".json"):
                (folder / path.name).write_bytes(path.read_bytes())
        (folder / "config.json").write_text(json.dumps({**config, **config_eos}))
        if generation_eos:
            (folder / "generation_config.json").write_text(json.dumps(generation_eos))
        return generated(run, worker, folder, "--tokens-file", tokens, "-n", "40")

    for unused in range(config["vocab_size"]):  # an id that the greedy run does not come by
        free = made(f"free{unused}", {"eos_token_id": unused}, None)
        if free["stop_reason"] == "length":
            break
    free = free["token_ids"]
    assert len(free) == 40
    for name, wanted, config_eos, generation_eos in (
            ("one", free[5], {"eos_token_id": free[5]}, None),
            ("list", free[7], {"eos_token_id": [unused, free[7]]}, None),
            ("both", free[20], {"eos_token_id": [unused]}, {"eos_token_id": [free[20], unused]})):
        out = made(name, config_eos, generation_eos)
        assert out["stop_reason"] == "stop"
        assert out["token_ids"] == free[:free.index(wanted) + 1]


def test_token_ids_need_no_tokenizer(run, worker, tmp_path):
    (tmp_path / "ids").write_text("1,2,3")
    result = run([worker, "generate", "--weights", NO_TOKENIZER, "--tokens-file", tmp_path / "ids",
                  "-n", "6"])
    assert result.returncode == 0
    assert len(result.stdout.split()) == 6 and all(t.isdigit() for t in result.stdout.split())
    result = run([worker, "generate", "--weights", NO_TOKENIZER, "--prompt", "a"])
    assert result.returncode == 1 and "tokenizer.json" in result.stderr


@pytest.mark.parametrize("how", ["text", "json"])
def test_ctrl_c_ends_with_what_was_made(worker, nano, how):
    process = subprocess.Popen(
        [str(worker), "generate", "--weights", str(nano), "--prompt", "The", "-n", "1500", "--cpu",
         "portable", "--threads", "1", *(["--json"] if how == "json" else [])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if how == "text":
        head = process.stdout.read(20)  # text is coming: the decode loop runs
    else:
        # Signals are taken from the start; a run cut before its first token is an answer too.
        head = b""
        while not os.path.exists(f"/proc/{process.pid}/task") or not os.stat(
                f"/proc/{process.pid}/exe") or "bench-worker" not in os.readlink(
                f"/proc/{process.pid}/exe") or not caught_sigint(process.pid):
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    if how == "text":
        assert (head + rest).endswith(b"\n") and b"interrupt; cpu portable" in err
    else:
        out = json.loads(rest)
        assert out["stop_reason"] == "interrupt" and len(out["token_ids"]) < 1500


def caught_sigint(pid):
    with open(f"/proc/{pid}/status") as f:
        mask = int(re.search(r"SigCgt:\s+([0-9a-f]+)", f.read())[1], 16)
    return mask >> (signal.SIGINT - 1) & 1


def test_output_that_cannot_be_written(worker, nano):
    with open("/dev/full", "w") as full:
        result = subprocess.run([str(worker), "generate", "--weights", str(nano), "--prompt", "a",
                                 "-n", "2", "--json"], stdout=full, stderr=subprocess.PIPE,
                                timeout=60)
    assert result.returncode == 1
    assert b"stdout" in result.stderr


# --- logits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["1", "7", "64", "512"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_logits_equal_the_emulation(run, worker, tmp_path, rows, threads):
    result = run([worker, "logits", "--weights", VECTOR, "--tokens-file", VECTOR / "tokens.json",
                  "--out", tmp_path / "out", "--rows", rows, "--threads", threads])
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out").read_bytes() == (VECTOR / "logits_bf16.bin").read_bytes()
    assert os.listdir(tmp_path) == ["out"]


def test_f32_logits_agree_with_transformers(run, worker, tmp_path):
    result = run([worker, "logits", "--weights", VECTOR, "--tokens-file", VECTOR / "tokens.json",
                  "--out", tmp_path / "out", "--activations", "f32"])
    assert result.returncode == 0, result.stderr
    vocab = json.loads((VECTOR / "config.json").read_text())["vocab_size"]
    got, want = (tmp_path / "out").read_bytes(), (VECTOR / "logits_f32.bin").read_bytes()
    assert len(got) == len(want)
    assert got != (VECTOR / "logits_bf16.bin").read_bytes()
    for at in range(0, len(want), 4 * vocab):  # largest difference over largest logit, per position
        a = struct.unpack_from(f"<{vocab}f", got, at)
        b = struct.unpack_from(f"<{vocab}f", want, at)
        assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4 * max(map(abs, b))


def test_logits_leave_an_old_file_alone_on_failure(run, worker, tmp_path):
    (tmp_path / "out").write_text("old")
    (tmp_path / "ids").write_text("1 2 100000")
    result = run([worker, "logits", "--weights", VECTOR, "--tokens-file", tmp_path / "ids", "--out",
                  tmp_path / "out"])
    assert result.returncode == 1
    assert "TOKEN-OUT-OF-RANGE" in result.stderr and "tokens[2]" in result.stderr
    assert "100000" in result.stderr and str(tmp_path / "ids") in result.stderr
    assert (tmp_path / "out").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["ids", "out"]
    result = run([worker, "logits", "--weights", VECTOR, "--tokens-file", VECTOR / "tokens.json",
                  "--out", tmp_path / "no/such/folder"])
    assert result.returncode == 1 and "no/such/folder" in result.stderr


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, code, text", [
    (["generate"], 2, "missingWeights"),
    (["generate", "--weights", VECTOR], 2, "--tokens-file is needed"),
    (["generate", "--weights", VECTOR, "--prompt", "a", "--tokens-file", "b"], 2, "only one of"),
    (["generate", "--weights", VECTOR, "--prompt", "a", "-n", "0"], 2, "badValue(-n)"),
    (["generate", "--weights", VECTOR, "--prompt", "a", "-n"], 2, "missingValue(-n)"),
    (["generate", "--weights", VECTOR, "--prompt", "a", "--drafter", ""], 2, "missingValue(--drafter)"),
    (["generate", "--weights", VECTOR, "--prompt", "a", "-n", "3x"], 2, "badValue(-n)"),
    (["generate", "--weights", VECTOR, "--tokens-file", "/nonexistent"], 1, "/nonexistent"),
    (["generate", "--weights", "/nonexistent", "--prompt", "a"], 1, "/nonexistent"),
    (["generate", "--weights", ROOT / "models/laguna-nano", "--prompt-file", "/nonexistent"], 1, "/nonexistent"),
    (["generate", "--weights", ROOT / "models/laguna-nano", "--prompt", b"a\xff"], 1, "TEXT-INVALID-UTF8"),
    (["generate", "--weights", ROOT / "models/laguna-nano", "--prompt", "a", "-n", "9000"], 1, "CONTEXT-EXCEEDED"),
    (["logits", "--weights", VECTOR, "--out", "x"], 2, "missingArgument"),
    (["logits", "--weights", VECTOR, "--tokens-file", "t", "--out", "x", "--rows", "0"], 2, "badValue(--rows)"),
    (["logits", "--weights", VECTOR, "--tokens-file", "t", "--out", "x", "--activations", "f16"], 2,
     "badValue(--activations)"),
    (["logits", "--weights", VECTOR, "--tokens-file", "/nonexistent", "--out", "x"], 1, "/nonexistent"),
    (["logits", "--weights", VECTOR, "--tokens-file", VECTOR / "tokens.json", "--out", "/tmp/x",
      "--context", "10"], 1, "CONTEXT-EXCEEDED"),
    (["explain"], 2, "unknownSubcommand(explain)"),
])
def test_bad_input_gets_one_line(worker, arguments, code, text):
    arguments = [a if isinstance(a, bytes) else str(a) for a in arguments]
    result = subprocess.run([str(worker), *arguments], capture_output=True, timeout=60)
    err = result.stderr.decode(errors="replace")
    assert result.returncode == code, err
    assert result.stdout == b""
    assert text in err
    assert len(said(err).strip().splitlines()) == 1


@pytest.mark.parametrize("content, text", [
    ("", "EMPTY-PROMPT"), ("[]", "EMPTY-PROMPT"), ("[1, 2.5]", "tokens[1]"), ("1 two", "tokens[1]"),
    ("[1, -3]", "tokens[1]"), ("[1, 2", "JSON-INVALID"), ("1 99999999999999999999", "tokens[1]"),
    ("5 128000", "TOKEN-OUT-OF-RANGE"), ('{"a": 1}', "TOKENS-INVALID")])
def test_bad_token_files(run, worker, tmp_path, content, text):
    (tmp_path / "ids").write_text(content)
    result = run([worker, "generate", "--weights", VECTOR, "--tokens-file", tmp_path / "ids"])
    assert result.returncode == 1
    assert text in result.stderr and str(tmp_path / "ids") in result.stderr
    assert len(said(result.stderr).strip().splitlines()) == 1
