"""`benchd report`: what the page and the tables say of each kind of score, that texts of files stay
texts, and that broken files are refused in one line. The page in a browser: tests/web."""

import base64
import copy
import hashlib
import html.parser
import json
import os
import re
import subprocess

import pytest

import report_kit as kit

HOSTILE = "</script><script>alert(1)</script>&<b>'\"\x1b[31m\u2028\u202e\u0085"
LIBRARY = "/*! Chart.js v3.9.1 */ var Chart = function () {};\r\n"


@pytest.fixture
def library(tmp_path):
    """A stand-in for Chart.js: these tests need no package."""
    path = tmp_path / "chart.js"
    path.write_text(LIBRARY, newline="")
    return path


@pytest.fixture
def report(library, tmp_path):
    def call(score, *flags, html=True, **environment):
        out = tmp_path / "page.html"
        where = ["--out", out] if html else ["--no-html"]
        command = [kit.BUILD / "benchd", "report", score, *where, *flags]
        return subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "MLXFAST_CHART_JS": str(library), **environment}), out
    return call


class Page(html.parser.HTMLParser):
    """Elements, and what inline ones hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inline, self.text, self.policy, self.open = [], {}, [], "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag if tag in ("script", "style") else None
        if self.open:
            self.inline.setdefault(dict(attrs).get("type", tag), []).append("")
            self.key = dict(attrs).get("type", tag)
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_data(self, data):
        if self.open:
            self.inline[self.key][-1] += data
        else:
            self.text.append(data)

    def handle_endtag(self, tag):
        self.open = None


def everything(tmp_path, change=lambda metrics: None):
    sealed = hashlib.sha256(kit.TRACK.read_bytes()).hexdigest()
    score = kit.official(contract=sealed)
    change(score["metrics"])
    return kit.write(tmp_path / "score.json", score)


def words(result):
    """Output without line breaks of filled paragraphs."""
    return re.sub(r"\s+", " ", result.stdout)


def test_the_verdict_of_a_ranked_run(report, tmp_path):
    result, out = report(everything(tmp_path))
    assert result.returncode == 0, result.stderr
    assert re.search(r"Faster by 2\.0\d%: the candidate runs at 1\.02\d\d times the control \(decode, "
                     r"95% interval 1\.0\d+ to 1\.0\d+, 8 pairs\); the control against itself gave "
                     r"[01]\.\d+ \([01]\.\d+ to 1\.\d+, which contains 1\.0 as it must\)\.", words(result))
    assert "The smallest difference that this run could have seen is 0.31%." in words(result)
    assert f"page: {out}" in result.stdout


@pytest.mark.parametrize("interval, null, said", [
    ([1.004, 1.03], True, "Faster by 2.00%"), ([0.99, 1.05], True, "No difference is claimed"),
    ([0.97, 0.99], True, "Slower by 2.00%"),
    ([1.001, 1.03], False, "Nothing can be claimed, since the control differs from itself"),
    (None, True, "No interval, so nothing is claimed")])
def test_what_may_be_claimed(report, tmp_path, interval, null, said):
    def change(metrics):
        metrics["statistics"].update(interval=interval, ratio=0.98 if said.startswith("Slower") else 1.02)
        metrics["statistics"]["null"]["contains_one"] = null
    result, _ = report(everything(tmp_path, change), html=False)
    assert said in words(result)


def test_every_section_and_the_numbers_of_the_pairs(report, tmp_path):
    score = everything(tmp_path)
    result, out = report(score, "--contract", kit.TRACK, "--roofline", kit.write(tmp_path / "b.json", kit.bench()))
    assert result.returncode == 0, result.stderr
    page = Page(out.read_text())
    text = "".join(page.text)
    for title in ("Verdict", "Pairs", "Intervals", "Latency of each decode step", "Gates and temperatures",
                  "Noise", "Share of the roofline", "Speculation", "Correctness", "Memory", "Identity",
                  "The contract in plain words", "Every metric"):
        assert f"\n== {title}\n" in result.stdout
        assert title in text
    metrics = json.loads(score.read_text())["metrics"]
    for pair in metrics["paired_legs"]:
        ratio = pair["control_decode_seconds_per_token"] / pair["candidate_decode_seconds_per_token"]
        assert f"{ratio:.4f}" in result.stdout and f"{ratio:.4f}" in text
    weights = json.loads(kit.TRACK.read_text())
    first = metrics["paired_legs"][0]
    gains = [first[f"control_{a}_seconds_per_token"] / first[f"candidate_{a}_seconds_per_token"]
             for a in ("prefill", "decode")]
    w = [weights["scoring"]["prefill_weight"], weights["scoring"]["decode_weight"]] if "scoring" in weights \
        else [weights["score_prefill_weight"], weights["score_decode_weight"]]
    composite = gains[0] ** (w[0] / sum(w)) * gains[1] ** (w[1] / sum(w))
    assert f"{composite:.4f}" in result.stdout
    for key in metrics:
        assert key in text, f"the table of metrics lacks {key}"
    assert "Its id is" in text and "laguna-nano-serial-v1" in text
    assert "38%" in text and "85.90%" in result.stdout


def test_the_charts_hold_the_numbers(report, tmp_path):
    score = everything(tmp_path)
    _, out = report(score)
    page = Page(out.read_text())
    charts = {c["alt"]: c for c in json.loads(page.inline["application/json"][0])}
    metrics = json.loads(score.read_text())["metrics"]
    decode = charts["Decode: time per token of each pair"]
    assert [s["name"] for s in decode["series"]] == ["control", "candidate"]
    assert decode["series"][1]["y"] == pytest.approx(
        [p["candidate_decode_seconds_per_token"] * 1e6 for p in metrics["paired_legs"]])
    steps = charts["Time of each decode step"]["series"][0]
    assert steps["y"] == pytest.approx([x * 1e6 for x in metrics["step_seconds"]])
    intervals = charts["Intervals of the pairs and of the null"]
    assert intervals["series"][0]["low"][0] == pytest.approx(metrics["statistics"]["interval"][0])
    assert {m["name"]: m["at"] for m in intervals["marks"]} == {"1.0": 1.0, "decode floor": 0.95}
    histogram = charts["How many steps took how long"]["series"][0]["values"]
    assert sum(histogram) == len(metrics["step_seconds"])
    heat = charts["Temperature during the timed phases"]["series"]
    assert sum(y is not None for s in heat for y in s["y"]) == 32 * 31
    assert len([t for t, _ in page.tags if t == "canvas"]) == len(charts)


def test_a_policy_of_exactly_what_is_inline(report, tmp_path):
    _, out = report(everything(tmp_path))
    page = Page(out.read_text())
    assert page.policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; style-src ")
    assert "unsafe" not in page.policy and "http" not in page.policy
    inline = page.inline["script"] + page.inline["style"]
    hashes = {"'sha256-" + base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() + "'" for t in inline}
    assert set(re.findall(r"'sha256-[^']+'", page.policy)) == hashes
    assert len(page.inline["script"]) == 2 and page.inline["script"][0] == LIBRARY.replace("\r", "")
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "base")
        assert "src" not in attributes and not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "Permission is hereby granted" in "".join(page.text)


def test_hostile_texts_stay_texts(report, tmp_path):
    def change(metrics):
        for key in ("engine_device", "runner_id", "commit", "timestamp", "golden_hash", "baseline_source"):
            metrics[key] = HOSTILE
        for gate in metrics["gates"]:
            gate["leg"] = gate["phase"] = gate["temperature"]["reader"] = HOSTILE
            gate["telemetry"].update(throttled=True, throttle_reasons=[HOSTILE])
    bench = kit.bench()
    bench["decode"][0]["parts"][HOSTILE] = bench["decode"][0]["parts"].pop("head")
    bench["decode"][0]["sentence"] = bench["machine"]["engine"] = HOSTILE
    result, out = report(everything(tmp_path, change), "--roofline", kit.write(tmp_path / "b.json", bench))
    assert result.returncode == 0, result.stderr
    text = out.read_text()
    page = Page(text)
    assert len(page.inline["script"]) == 2 and len(page.inline["application/json"]) == 1
    assert "<b>" not in text and "<script>alert" not in text
    shown = "".join(page.text)
    assert "</script><script>alert(1)</script>&<b>'\"\\x1b[31m\\u2028\\u202e\\x85" in shown
    charts = json.loads(page.inline["application/json"][0])
    assert any("alert(1)" in s["name"] for c in charts for s in c["series"])
    for treacherous in "\x1b\u2028\u202e\u0085":
        assert treacherous not in text and treacherous not in result.stdout
    assert "\\x1b[31m" in result.stdout


def test_long_texts_are_clipped(report, tmp_path):
    def change(metrics):
        metrics["engine_device"] = "d" * 100000
    result, out = report(everything(tmp_path, change))
    assert "(100000 bytes)" in out.read_text()
    assert max(map(len, result.stdout.splitlines())) < 300
    assert "d" * 3000 not in out.read_text()


@pytest.mark.parametrize("score, said", [
    (kit.document(prefill_seconds_per_token=2e-4, decode_seconds_per_token=2.5e-4),
     "Passed, an unscored local run: prefill 5000 tok/s, decode 4000 tok/s"),
    (kit.document(), "Correctness passed; nothing was timed, so there is no speed and no score."),
    (kit.document(passed=False, passed_correctness=False, error="TokenMismatch: at step 4"),
     "Not passed, so there is no score: TokenMismatch: at step 4"),
    (kit.document(score=1.5), "Passed with the score 1.5000; no statistics are sealed"),
    (kit.document(score=1.1, **kit.BLOCKS),
     "Block decoding runs at 1.1000 times serial decoding (ratio of means over 2 pairs; no interval is "
     "sealed); not rankable: a local run.")])
def test_other_kinds_of_scores(report, tmp_path, score, said):
    result, out = report(kit.write(tmp_path / "score.json", score))
    assert result.returncode == 0, result.stderr
    assert said in words(result) and said in "".join(Page(out.read_text()).text)


def test_parts_without_data_say_so(report, tmp_path):
    result, _ = report(kit.write(tmp_path / "score.json", kit.document()), html=False)
    for said in ("There are no pairs: this run had no control leg", "No interval is sealed",
                 "No step was timed on its own", "No gate stood before a timed phase",
                 "Nothing here tells of noise", "No measurement of the machine's bandwidth was given",
                 "No speculation is sealed", "The contract was not given (--contract FILE)",
                 "No digest (.sha256) lies beside the score"):
        assert said in words(result)


def test_blocks_have_their_acceptance(report, tmp_path):
    _, out = report(kit.write(tmp_path / "score.json", kit.document(score=1.1, **kit.BLOCKS)))
    charts = {c["alt"]: c for c in json.loads(Page(out.read_text()).inline["application/json"][0])}
    acceptance = charts["Acceptance: how many rounds were how long"]
    assert acceptance["labels"] == ["0", "1", "2", "3", "4"]
    assert acceptance["series"][0]["values"] == [0, 40, 45, 21, 10]


def test_ranked_blocks_show_every_attempt(report, tmp_path):
    score = kit.official_blocks()
    result, out = report(kit.write(tmp_path / "score.json", score))
    assert result.returncode == 0, result.stderr
    assert "Faster by " in words(result) and "no: telemetry" in result.stdout
    charts = {c["alt"]: c for c in json.loads(Page(out.read_text()).inline["application/json"][0])}
    counted = [p for p in score["metrics"]["block_pairs"] if p["accepted"]]
    assert charts["Ratio of each pair"]["series"][0]["name"] == "decode"
    assert charts["Ratio of each pair"]["series"][0]["x"] == [1, 2, 3, 4]
    assert charts["Ratio of each pair"]["series"][0]["y"] == pytest.approx(
        [p["control_seconds_per_token"] / p["candidate_seconds_per_token"] for p in counted])
    assert len(charts["Requests of each pair: median and longest"]["series"]) == 4
    assert len(charts["Null pairs: the control against itself"]["series"][0]["x"]) == 3


def test_runs_side_by_side(report, tmp_path):
    (tmp_path / "other").mkdir()
    first = everything(tmp_path)
    second = kit.write(tmp_path / "other" / "score.json", kit.official(seed=11, gain=-0.03))
    result, _ = report(first, "--pairs", second, html=False)
    table = result.stdout.split("Runs side by side\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[1:]] == [str(first), str(second)]
    assert "decode" in table[1] and "0.97" in table[2]


def test_the_sidecar_is_compared(report, tmp_path):
    score = everything(tmp_path)
    sidecar = tmp_path / "score.json.sha256"
    sidecar.write_text(hashlib.sha256(score.read_bytes()).hexdigest() + "  score.json\n")
    result, _ = report(score, html=False)
    assert "The digest beside the score (.sha256) is that of the file." in words(result)
    score.write_text(score.read_text() + "\n")
    result, _ = report(score, html=False)
    assert "the score was changed after it was sealed" in words(result)
    assert result.returncode == 0


def test_no_colours_and_no_page_when_not_asked(report, tmp_path):
    result, out = report(everything(tmp_path), html=False, MLXFAST_CHART_JS="/nowhere")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout and "page:" not in result.stdout and not out.exists()


def test_the_page_lies_beside_the_score(report, tmp_path, library):
    score = everything(tmp_path)
    result = subprocess.run([kit.BUILD / "benchd", "report", score], capture_output=True, text=True, timeout=60,
                            env={**os.environ, "MLXFAST_CHART_JS": str(library)})
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "score.report.html").read_text().startswith("<!doctype html>")


def refused(report, score, *flags, code=1, **environment):
    result, out = report(score, *flags, **environment)
    assert result.returncode == code, result.stderr
    assert result.stderr.count("\n") == 1 and result.stdout == "" and not out.exists()
    return result.stderr


def test_chart_library_refused(report, tmp_path, library):
    score = everything(tmp_path)
    line = refused(report, score, MLXFAST_CHART_JS=str(tmp_path / "absent.js"))
    assert "CHART-LIBRARY-MISSING: " in line and "libjs-chart.js" in line and "absent.js" in line
    for text in (b"var x;", b"Chart.js v2.9.4", b"Chart.js v3.9 </SCRIPT >", b"Chart.js v4.1 <!-- ", b"",
                 b"Chart.js v3.9 \xff", b"Chart.js v3.9 \0"):
        library.write_bytes(text)
        assert "CHART-LIBRARY-INVALID: " in refused(report, score)


def test_contract_of_another_run_refused(report, tmp_path):
    score = kit.write(tmp_path / "score.json", kit.official(contract=kit.HEX))
    line = refused(report, score, "--contract", kit.TRACK)
    assert "REPORT-CONTRACT-MISMATCH: " in line and kit.HEX in line


@pytest.mark.parametrize("change, field", [
    (lambda b: b.update(bench=2), "bench"), (lambda b: b.pop("decode"), "decode"),
    (lambda b: b.update(decode=[]), "decode"),
    (lambda b: b["decode"][0].update(context="x"), "decode[0].context"),
    (lambda b: b["decode"][0].update(parts=[]), "decode[0].parts"),
    (lambda b: b["decode"][0]["parts"].update(head=5), "decode[0].parts.head.seconds"),
    (lambda b: b["decode"][0]["parts"]["head"].update(share=-1), "decode[0].parts.head.share")])
def test_malformed_bench_refused(report, tmp_path, change, field):
    bench = kit.bench()
    change(bench)
    line = refused(report, everything(tmp_path), "--roofline", kit.write(tmp_path / "bench.json", bench))
    assert "REPORT-BENCH-INVALID: " in line and f"field {field}" in line and "bench.json" in line


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"null", b'{"metrics": {}, "passed": true, "score": 1}', b"\xff\xfe", b"[" * 100000,
    b'{"metrics": {}, "metrics": {}, "passed": true, "score": 1}'])
def test_malformed_score_refused(report, tmp_path, text):
    score = tmp_path / "score.json"
    score.write_bytes(text)
    assert "SCORE-INVALID: " in (line := refused(report, score)) and "score.json" in line
    good = kit.write(tmp_path / "good.json", kit.document())
    assert "SCORE-INVALID: " in refused(report, good, "--pairs", score)


def changed(score, path, value):
    score = copy.deepcopy(score)
    place = score["metrics"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return score


@pytest.mark.parametrize("path, values", [
    (("step_seconds",), ([], [0.0], [1e308, 1e-308, 1e308], [1e-4] * 50, [5, 5.5])),
    (("paired_legs", 0, "control_decode_seconds_per_token"), (0.0, -1.0, 1e308, 1e-308)),
    (("paired_legs", 0, "pair"), (-9223372036854775808, 9223372036854775807)),
    (("statistics", "ratio"), (0.0, -1.0, 1e308)),
    (("statistics", "interval"), ([-1e308, 1e308], [0.0, 0.0])),
    (("statistics", "pairs"), (0, -5, 9223372036854775807)),
    (("statistics", "null"), (None,)),
    (("null_pairs",), ([],)), (("paired_legs",), ([],)), (("gates",), ([],)),
    (("gates", 0, "telemetry"), (None,)), (("gates", 0, "temperature"), (None,)),
    (("gates", 0, "telemetry", "series"), ({"seconds": [], "celsius": [], "clock_mhz": []},
                                           {"seconds": [None, -1, 1e308], "celsius": [1, None, 2],
                                            "clock_mhz": [None, None, None]})),
    (("acceptance_lengths",), ([], [-5, 0, 9223372036854775807])),
    (("weights_byte_count",), (-1, 9223372036854775807)),
    (("decode_seconds_per_token",), (-1.0, 1e308, 1e-308))])
def test_malformed_values_are_shown_or_refused(report, tmp_path, path, values):
    """Whatever a closed score may hold, the page is whole or the score is refused in one line."""
    for value in values:
        score = kit.write(tmp_path / "score.json", changed(kit.official(), path, value))
        result, out = report(score)
        if result.returncode == 0:
            page = Page(out.read_text())
            charts = json.loads(page.inline["application/json"][0])
            assert len(charts) == len([t for t, _ in page.tags if t == "canvas"])
            assert not re.search(r"\b(nan|inf)\b", "".join(page.text)), (path, value)
            out.unlink()
        else:
            assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
            assert "SCORE-INVALID: " in result.stderr


def test_outputs_refused(report, tmp_path, library):
    score = everything(tmp_path)
    before = score.read_bytes()
    env = {**os.environ, "MLXFAST_CHART_JS": str(library)}
    for flags, code in ((["--out", score], 2), (["--out", tmp_path], 3), (["--out", tmp_path / "no" / "x.html"], 3),
                        (["--no-html", "--out", tmp_path / "x.html"], 2)):
        result = subprocess.run([kit.BUILD / "benchd", "report", score, *flags], capture_output=True, text=True,
                                timeout=60, env=env)
        assert result.returncode == code, (flags, result.stderr)
        assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert score.read_bytes() == before
