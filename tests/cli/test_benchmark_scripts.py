"""benchmark.sh and benchmark-dflash.sh: arguments, the lock in both directions, engines left behind, the
drift tripwire, the cool gate, Ctrl-C, and whole small runs with the bundled model."""

import contextlib
import hashlib
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tools" / "local_run"))
import cool  # noqa: E402
import guard  # noqa: E402
import settings  # noqa: E402

SERIAL, DFLASH = "benchmark.sh", "benchmark-dflash.sh"
SCRIPTS = (SERIAL, DFLASH)
NANO, DRAFTER = ROOT / "models" / "laguna-nano", ROOT / "models" / "laguna-nano-dflash"
TRACKS = {SERIAL: ROOT / settings.SERIAL_TRACK, DFLASH: ROOT / settings.DFLASH_TRACK}
OTHER = {SERIAL: DFLASH, DFLASH: SERIAL}


class Place:
    """A folder for one script's results, and an environment that nothing else reaches into."""

    def __init__(self, folder):
        self.folder = folder
        self.score = folder / "score.json"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
        self.environment |= {
            "BUILD": str(BUILD), "MLXFAST_LOCAL_BUILD": "0", "MLXFAST_LOCAL_RUN_GUARD": "0",
            "MLXFAST_SCORE_PATH": str(self.score), "MLXFAST_LOCAL_WORK_DIR": str(folder / "serial"),
            "MLXFAST_DFLASH_LOCAL_WORK_DIR": str(folder / "dflash"),
            "MLXFAST_LOCAL_TEST_SENSORS": str(folder / "no-sensors"),
            "MLXFAST_LOCAL_TEST_COMMAND_S": "200", "MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS": "8"}
        # A few tokens on a busy machine may take any time: no speed-up is implausible or too low.
        contract = json.loads((TRACKS[DFLASH] / "contract.json").read_text())
        contract["block_decode"] |= {"raw_speedup_min": 1e-6, "raw_speedup_max": 1e6}
        contract["decode_speedup_floor"] = 1e-6
        self.contract = folder / "contract.json"
        self.contract.write_text(json.dumps(contract))

    def variables(self, script, given):
        """The environment of one run."""
        own = {}
        if script == DFLASH:
            own = {"MLXFAST_DFLASH_CONTRACT_PATH": self.contract,
                   "MLXFAST_CORRECTNESS_GOLDEN_PATH": TRACKS[DFLASH] / "public.golden.json"}
        return self.environment | {k: str(v) for k, v in (own | given).items()}

    def locked(self):
        """The same with the guard on, and a lock of its own."""
        self.environment |= {"MLXFAST_LOCAL_RUN_GUARD": "1",
                             "MLXFAST_LOCAL_RUN_LOCK_DIR": str(self.folder / "lock")}
        return self

    def run(self, script, *arguments, timeout=300, **variables):
        return subprocess.run([str(ROOT / script), *(arguments or ("--local-iterate",))], cwd=self.folder,
                              capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                              env=self.variables(script, variables))

    def start(self, script, **variables):
        return subprocess.Popen([str(ROOT / script), "--local-iterate"], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                env=self.variables(script, variables))

    def assert_sealed(self):
        data = self.score.read_bytes()
        sidecar = self.score.with_name("score.json.sha256").read_text()
        assert sidecar.split()[0] == hashlib.sha256(data).hexdigest()
        assert list(self.folder.glob("benchmark-integrity*.json"))
        return json.loads(data)

    def assert_nothing_written(self):
        assert not [p.name for p in self.folder.iterdir()
                    if p.name.startswith(("score", "benchmark-integrity"))]


@pytest.fixture
def place(build, tmp_path):
    return Place(tmp_path)


# ---- Arguments and variables ----


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_complete(place, script):
    """Every variable of the script's table, every one that is accepted, and the exit codes."""
    result = place.run(script, "--help")
    assert result.returncode == 0 and result.stderr == ""
    kind = "dflash" if script == DFLASH else "serial"
    headings = set(re.findall(r"^  (MLXFAST_\w+)$", result.stdout, re.M))
    assert headings == {row[0] for row in settings.VARIABLES if kind in row[1]}
    for name in [*settings.NO_MEANING, "MLXFAST_SWIFT_BIN", "--local-iterate", "--local-submit", "Exit codes"]:
        assert name in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_variable_of_the_original_is_known():
    known = {row[0] for row in settings.VARIABLES} | set(settings.ALIASES) | set(settings.NO_MEANING)
    for name in """MLXFAST_SCORE_PATH MLXFAST_WEIGHTS_PATH MLXFAST_SWIFT_BIN MLXFAST_DFLASH_CONTRACT_PATH
            MLXFAST_DFLASH_BLOCK_SIZE MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS MLXFAST_DFLASH_LOCAL_SUBMIT_TOKENS
            MLXFAST_DFLASH_LOCAL_WORK_DIR MLXFAST_DFLASH_DRAFTER_DIR MLXFAST_DFLASH_ASSISTANT_DIR
            MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE MLXFAST_CORRECTNESS_GOLDEN_PATH MLXFAST_LOCAL_COOL_GATE
            MLXFAST_GPU_TEMP_CMD MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT MLXFAST_LOCAL_RUN_LOCK_DIR
            MLXFAST_LOCAL_RUN_GUARD MLXFAST_VERIFY_TRANSFORM MLXFAST_MAX_WEIGHTS_BYTES
            MLXFAST_DFLASH_DECODE_TOKENS MLXFAST_DFLASH_CORRECTNESS_TOKENS
            MLXFAST_DFLASH_DECODE_SPEEDUP_FLOOR MLXFAST_OFFICIAL_BENCHMARK_RUN""".split():
        assert name in known, name


def test_the_page_has_the_same_variables():
    """docs/dflash-track.md's table against the table that the scripts read."""
    page = (ROOT / "docs" / "dflash-track.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `MLX")]
    named = set(re.findall(r"`(MLXFAST_\w+)`", " ".join(rows)))
    assert named == {row[0] for row in settings.VARIABLES} | set(settings.ALIASES)
    for name in settings.NO_MEANING:
        assert name in page, name


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("arguments, says", [
    ((), "--local-iterate or --local-submit"), (("--local-iterate", "--local-submit"), "not both"),
    (("--fast",), "unknown argument '--fast'"), (("--official",), "organiser's machine"),
    (("--local-iterate", "more"), "unknown argument 'more'")])
def test_wrong_arguments_are_usage(place, script, arguments, says):
    result = subprocess.run([str(ROOT / script), *arguments], capture_output=True, text=True, timeout=60,
                            env=place.environment, cwd=place.folder)
    assert result.returncode == 2 and says in result.stderr
    place.assert_nothing_written()


@pytest.mark.parametrize("script, name, value, says", [
    (DFLASH, "MLXFAST_DFLASH_BLOCK_SIZE", "1", "from 2 to 16, not '1'"),
    (DFLASH, "MLXFAST_DFLASH_BLOCK_SIZE", "17", "from 2 to 16, not '17'"),
    (DFLASH, "MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS", "0", "from 1 to 512, not '0'"),
    (DFLASH, "MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS", "513", "from 1 to 512, not '513'"),
    (DFLASH, "MLXFAST_DFLASH_LOCAL_SUBMIT_TOKENS", "1e2", "from 1 to 512, not '1e2'"),
    (DFLASH, "MLXFAST_DFLASH_LOCAL_PAIRS", "33", "from 1 to 32, not '33'"),
    (DFLASH, "MLXFAST_DFLASH_DRAFTER_DIR", "absent", "no such folder"),
    (DFLASH, "MLXFAST_DFLASH_ASSISTANT_DIR", "absent", "no such folder"),
    (DFLASH, "MLXFAST_DFLASH_CONTRACT_PATH", TRACKS[SERIAL] / "contract.json", "no block_decode"),
    (DFLASH, "MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE", "absent", "no such file"),
    (SERIAL, "MLXFAST_WEIGHTS_PATH", "absent", "no such folder"),
    (SERIAL, "MLXFAST_CORRECTNESS_GOLDEN_PATH", "absent", "no such file"),
    (SERIAL, "MLXFAST_SCORE_PATH", "absent/score.json", "cannot be written"),
    (SERIAL, "MLXFAST_LOCAL_COOL_GATE", "maybe", "is 0 or 1, not 'maybe'"),
    (SERIAL, "MLXFAST_LOCAL_COOL_TARGET_C", "cold", "is a number, not 'cold'"),
    (SERIAL, "MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT", "yes", "is 0 or 1, not 'yes'")])
def test_wrong_values_are_usage(place, script, name, value, says):
    result = place.run(script, **{name: value})
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and name.replace("ASSISTANT", "DRAFTER") in result.stderr
    place.assert_nothing_written()


def test_two_names_of_one_setting_must_agree(place):
    result = place.run(SERIAL, MLXFAST_ENGINE_PATH="/a", MLXFAST_SWIFT_BIN="/b")
    assert result.returncode == 2 and "two names of one setting" in result.stderr


def test_variables_without_meaning_are_said_to_have_none(place):
    """The run itself ends at once, at an engine that is not there."""
    result = place.run(SERIAL, MLXFAST_SWIFT_BIN=place.folder / "none", MLXFAST_VERIFY_TRANSFORM="1",
                       DARKBLOOM_TRACE_FUSION="1", MLXFAST_LOCAL_COLD_GATE="0")
    assert result.returncode == 2 and "the engine" in result.stderr
    assert "note: MLXFAST_VERIFY_TRANSFORM has no meaning here: there is no transform" in result.stdout
    assert "note: DARKBLOOM_TRACE_FUSION has no meaning here" in result.stdout
    assert "note: MLXFAST_LOCAL_COLD_GATE is not a variable of a local run" in result.stdout


# ---- The build ----


def test_an_engine_older_than_its_sources_is_named(place):
    engine = place.folder / "bench-worker"
    shutil.copy2(BUILD / "bench-worker", engine)
    os.utime(engine, (1, 1))
    weights = place.folder / "weights"
    weights.mkdir()  # no model: the run ends after the look
    result = place.run(SERIAL, MLXFAST_ENGINE_PATH=engine, MLXFAST_WEIGHTS_PATH=weights)
    assert result.returncode == 1
    assert re.search(rf"build: {engine} is older than src/engine/\S+: it may be timed without", result.stdout)


@pytest.mark.parametrize("stale", [True, False])
def test_stale_programs_are_built(place, stale):
    """make says whether they are; a stand-in for it notes what it is asked."""
    tools, notes = place.folder / "bin", place.folder / "asked"
    tools.mkdir()
    (tools / "make").write_text(f"#!/bin/sh\necho \"$@\" >>{notes}\n"
                                f"case \"$*\" in *-q*) exit {int(stale)};; esac\necho broken; exit 2\n")
    (tools / "make").chmod(0o755)
    weights = place.folder / "weights"
    weights.mkdir()
    (place.folder / "build").mkdir()
    for program in ("benchd", "bench-worker"):
        (place.folder / "build" / program).symlink_to(BUILD / program)
    result = place.run(SERIAL, MLXFAST_LOCAL_BUILD="1", MLXFAST_WEIGHTS_PATH=weights,
                       BUILD=place.folder / "build", PATH=f"{tools}:{os.environ['PATH']}")
    asked = notes.read_text().splitlines()
    assert result.returncode == 1 and asked[0].endswith("-q all")
    if stale:
        assert len(asked) == 2 and asked[1].endswith(" all")
        assert "the build failed" in result.stderr and "broken" in result.stdout
    else:
        assert len(asked) == 1 and "build: up to date" in result.stdout


# ---- The lock ----


def wait_for_line(fifo, process):
    """What is written to a named pipe, or a failure when the process ends without that. Open for both
    directions, a named pipe waits for nobody."""
    pipe, watch = os.open(fifo, os.O_RDWR), os.pidfd_open(process.pid)
    ready = select.select([pipe, watch], [], [], 240)[0]
    line = os.read(pipe, 100).decode() if pipe in ready else None
    os.close(pipe)
    os.close(watch)
    assert line is not None, "".join(process.communicate())
    return line


@contextlib.contextmanager
def held_up(place, script, **variables):
    """The script, stopped where its cool gate reads the temperature, and a call that lets it go on."""
    up, on = place.folder / f"{script}.up", place.folder / f"{script}.on"
    os.mkfifo(up)
    os.mkfifo(on)
    process = place.start(script, MLXFAST_GPU_TEMP_CMD=f"echo x >{up}; read line <{on}; echo 20", **variables)

    def release():
        with contextlib.suppress(OSError):
            os.close(os.open(on, os.O_WRONLY | os.O_NONBLOCK))

    try:
        assert wait_for_line(up, process) == "x\n"
        yield process, release
    finally:
        release()
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.xdist_group("leftovers")  # one test's leftover engine must not be another's
@pytest.mark.parametrize("first", SCRIPTS)
def test_the_lock_holds_in_both_directions(place, first):
    place.locked()
    with held_up(place, first) as (process, _):
        for second in (OTHER[first], first):
            result = place.run(second)
            assert result.returncode == 3, result.stdout + result.stderr
            assert f"another local run is measuring: {first}, pid {process.pid}, since" in result.stderr
        place.assert_nothing_written()
@pytest.mark.xdist_group("leftovers")  # one test's leftover engine must not be another's
def test_a_killed_run_leaves_no_lock(place):
    place.locked()
    with held_up(place, SERIAL) as (process, _):
        process.kill()
        process.wait()
        os.close(guard.take_lock(place.folder / "lock", "a test"))


def test_a_lock_folder_of_another_kind_is_refused(place):
    place.locked()
    (place.folder / "lock").write_text("")
    result = place.run(SERIAL)
    assert result.returncode == 2 and "MLXFAST_LOCAL_RUN_LOCK_DIR" in result.stderr
    (place.folder / "lock").unlink()
    (place.folder / "lock").mkdir()
    (place.folder / "lock" / guard.LOCK).symlink_to(place.folder / "elsewhere")
    result = place.run(SERIAL)
    assert result.returncode == 2 and "the lock cannot be made" in result.stderr
    assert not (place.folder / "elsewhere").exists()


# ---- Engines that were left behind ----


@contextlib.contextmanager
def left_behind():
    """A bench-worker whose parent has gone: its pid. It reads from us until we close."""
    shell = subprocess.Popen(["/bin/sh", "-c", 'exec 3<&0; "$0" runtime-worker --weights "$1" <&3 '
                              '>/dev/null 2>&1 & echo $!', str(BUILD / "bench-worker"), str(NANO)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(shell.stdout.readline())
    watch = os.pidfd_open(pid)
    shell.wait()
    while os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "bench-worker":
        os.sched_yield()  # still the shell's own copy
    try:
        yield pid
    finally:
        shell.stdin.close()
        assert select.select([watch], [], [], 60)[0], "the worker ends with its input"
        os.close(watch)


@pytest.mark.xdist_group("leftovers")  # one test's leftover engine must not be another's
@pytest.mark.parametrize("script", SCRIPTS)
def test_leftover_engines_are_named_and_refused(place, script):
    place.locked()
    with left_behind() as pid:
        left, busy = guard.engines({"bench-worker"})
        assert pid in {p.pid for p in left} and pid not in {p.pid for p in busy}
        result = place.run(script)
        assert result.returncode == 3, result.stdout + result.stderr
        assert re.search(rf"bench-worker, pid {pid}, running for \d+ s", result.stderr)
        assert re.search(rf"kill [\d ]*\b{pid}\b", result.stderr)
        assert "MLXFAST_LOCAL_RUN_GUARD=0" in result.stderr
        place.assert_nothing_written()
        # With the guard off the run goes on, here to an engine that is not there.
        result = place.run(script, MLXFAST_LOCAL_RUN_GUARD="0", MLXFAST_ENGINE_PATH=place.folder / "none")
        assert result.returncode == 2 and "no look for leftover engines" in result.stdout


def test_an_engine_at_work_is_no_leftover(build):
    with subprocess.Popen([str(build / "bench-worker"), "runtime-worker", "--weights", str(NANO)],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        worker.stdout.readline()
        left, busy = guard.engines({"bench-worker"})
        assert worker.pid in {p.pid for p in busy} and worker.pid not in {p.pid for p in left}
        worker.stdin.close()


# ---- The cool gate ----


def gate(values, target=40.0):
    """The gate over a list of readings, one for each poll; the last one stays. No time passes."""
    now, said = [0.0], []
    left = list(values)

    def read():
        return left.pop(0) if len(left) > 1 else left[0]

    def sleep(seconds):
        assert seconds == cool.POLL_S
        now[0] += seconds

    return (*cool.wait(read, target, lambda: now[0], sleep, said.append), said)


def test_a_cool_machine_does_not_wait():
    assert gate([40.0]) == (cool.COOL, 40.0, 0.0, [])


def test_the_gate_waits_until_it_is_cool():
    verdict, value, waited, said = gate([43.0, 42.0, 41.0, 40.1, 40.0])
    assert (verdict, value, waited) == (cool.COOL, 40.0, 40.0)
    assert said == ["cool gate: 43.0 C, waiting for 40 C"]


def test_no_reader_blocks_nothing():
    assert gate([None])[:3] == (cool.UNREAD, None, 0.0)
    assert gate([50.0, None])[:3] == (cool.UNREAD, 50.0, 10.0)


def test_a_stall_is_seen_after_180_s_at_the_earliest():
    verdict, value, waited, said = gate([55.0])
    assert (verdict, value, waited) == (cool.STALLED, 55.0, 180.0)
    assert any("fans" in line for line in said)


def test_progress_of_a_quarter_degree_puts_the_stall_off():
    """0.25 C in each 90 s is progress; 0.24 C is none."""
    falling = lambda step: [60.0 - step * (i // 9) for i in range(91)]
    assert gate(falling(0.25))[:3] == (cool.CEILING, 60.0 - 0.25 * 10, 900.0)
    assert gate(falling(0.24))[2] == 270.0 and gate(falling(0.24))[0] == cool.STALLED


def test_a_stall_counts_from_the_last_progress():
    # Down to 50 C at 200 s, then nothing: 90 s later it is a stall.
    values = [70.0 - i for i in range(21)] + [50.0]
    assert gate(values)[:3] == (cool.STALLED, 50.0, 290.0)


def test_sensors_are_the_cpus(tmp_path):
    for number, (name, temperatures) in enumerate([("nvme", [90000]), ("coretemp", [41000, 45500])]):
        chip = tmp_path / "hwmon" / f"hwmon{number}"
        chip.mkdir(parents=True)
        (chip / "name").write_text(name + "\n")
        for i, t in enumerate(temperatures):
            (chip / f"temp{i + 1}_input").write_text(f"{t}\n")
    assert cool.sensor_reader(cool.sensors(tmp_path))() == 45.5
    shutil.rmtree(tmp_path / "hwmon" / "hwmon1")
    assert cool.sensor_reader(cool.sensors(tmp_path))() is None
    zone = tmp_path / "thermal" / "thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("x86_pkg_temp\n")
    (zone / "temp").write_text("39000\n")
    assert cool.sensor_reader(cool.sensors(tmp_path))() == 39.0


@pytest.mark.parametrize("command, value", [("echo 41", 41.0), ("echo 'GPU: 38.5 C'", 38.5),
                                            ("echo -3", -3.0), ("echo warm", None), ("exit 1", None),
                                            ("echo 40; exit 1", None), ("no-such-program", None)])
def test_the_temperature_command(command, value):
    assert cool.command_reader(command)() == value


def test_a_machine_that_does_not_cool_is_not_timed(place):
    result = place.run(SERIAL, MLXFAST_GPU_TEMP_CMD="echo 55", MLXFAST_LOCAL_TEST_CLOCK="1")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "the machine does not get cooler: 55.0 C after 180 s, wanted 40 C before the serial leg" in \
        result.stderr
    assert "MLXFAST_LOCAL_COOL_GATE=0" in result.stderr
    place.assert_nothing_written()


# ---- Whole runs of the serial track ----


def test_a_serial_run(place):
    place.score.write_text("an old one")
    result = place.run(SERIAL)
    assert result.returncode == 0, result.stdout + result.stderr
    document = place.assert_sealed()
    m = document["metrics"]
    assert document["passed"] is True and document["score"] is None and m["passed_correctness"] is True
    assert re.search(r"decode +[\d,]+ tokens/s", result.stdout)
    assert "tripwire: passed, 15 cases" in result.stdout
    assert "temperature not known" in result.stdout


def drifted(place, script, part):
    """A copy of the public golden with one token changed, and which one."""
    golden = json.loads((TRACKS[script] / "public.golden.json").read_text())
    case = golden["correctness_gates"]["free_run"][0] if part == "free_run" else golden["cases"][0]
    right = case["expected_tokens"][5]
    case["expected_tokens"][5] = right ^ 1
    path = place.folder / "drifted.golden.json"
    path.write_text(json.dumps(golden))
    return path, case["name"], right ^ 1, right


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_drift_ends_the_run_before_timing(place, script):
    path, name, expected, actual = drifted(place, script, "free_run")
    place.score.write_text("an old one")
    result = place.run(script, MLXFAST_CORRECTNESS_GOLDEN_PATH=path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{name}, step 5: expected {expected}, got {actual}" in result.stdout
    assert "MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT=1" in result.stderr
    place.assert_nothing_written()


@pytest.mark.parametrize("part", ["free_run", "case"])
def test_a_serial_drift_that_is_allowed_is_recorded(place, part):
    """One wrong token of a base case is inside its gate's leniency, and still a drift."""
    path, name, expected, actual = drifted(place, SERIAL, part)
    result = place.run(SERIAL, MLXFAST_CORRECTNESS_GOLDEN_PATH=path, MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT="1")
    assert result.returncode == 0, result.stdout + result.stderr
    document = place.assert_sealed()
    m = document["metrics"]
    assert document["passed"] is False and m["passed_correctness"] is False
    assert m["first_failing_case"] == (name if part == "free_run" else f"tripwire-{name}")
    assert (m["first_failing_step"], m["expected_token"], m["actual_token"]) == (5, expected, actual)
    assert m["decode_seconds_per_token"] > 0 and m["prefill_seconds_per_token"] > 0
    assert "FAILED" in result.stdout


def test_a_serial_drift_in_the_timed_tokens_is_timed_all_the_same(place):
    golden = json.loads((TRACKS[SERIAL] / "public.golden.json").read_text())
    golden["benchmark"]["expected_decode_tokens"][3] ^= 1
    golden["correctness_gates"]["free_run"][0]["expected_tokens"][5] ^= 1
    path = place.folder / "drifted.golden.json"
    path.write_text(json.dumps(golden))
    result = place.run(SERIAL, MLXFAST_CORRECTNESS_GOLDEN_PATH=path, MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT="1")
    assert result.returncode == 0, result.stdout + result.stderr
    m = place.assert_sealed()["metrics"]
    assert m["passed_correctness"] is False and m["decode_seconds_per_token"] > 0


# ---- Ctrl-C ----


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing(place, script, number):
    """While the judge waits for an engine that says nothing: both end, and no score is there."""
    up, engine = place.folder / "up", place.folder / "bench-worker"
    os.mkfifo(up)
    engine.write_text(f"#!/bin/sh\necho $$ >{up}\nexec cat\n")
    engine.chmod(engine.stat().st_mode | stat.S_IXUSR)
    process = place.start(script, MLXFAST_ENGINE_PATH=engine, MLXFAST_NO_SANDBOX="1")
    watch = os.pidfd_open(int(wait_for_line(up, process)))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"interrupted ({number.name})" in err and "Traceback" not in err
    assert select.select([watch], [], [], 60)[0], "the engine is gone"
    os.close(watch)
    place.assert_nothing_written()


def test_ctrl_c_at_the_gate(place):
    with held_up(place, SERIAL) as (process, release):
        process.send_signal(signal.SIGINT)
        release()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in err
    place.assert_nothing_written()


# ---- Whole runs of the DFlash track ----


def test_a_dflash_run(place):
    place.score.write_text("an old one")
    result = place.run(DFLASH, MLXFAST_DFLASH_LOCAL_PAIRS="2", MLXFAST_DFLASH_BLOCK_SIZE="5")
    assert result.returncode == 0, result.stdout + result.stderr
    document = place.assert_sealed()
    m = document["metrics"]
    assert document["passed"] is True and m["passed_correctness"] is True
    assert m["mode"] == "dflash-local-iterate" and m["rankable"] is False and m["official_score"] is False
    assert (m["decode_tokens"], m["block_size"], m["public_drift_tripwire_passed"]) == (8, 5, True)
    assert m["uses_trained_drafter"] is True and m["all_tokens_matched"] is True
    reports = {kind: [json.loads((place.folder / "dflash" / f"{kind}-{i}.json").read_text()) for i in (1, 2)]
               for kind in ("probe", "benchmark")}
    mean = {kind: sum(r["parent_measured_seconds_per_token"] for r in both) / 2
            for kind, both in reports.items()}
    assert m["serial_seconds_per_token"] == pytest.approx(mean["probe"], rel=1e-9)
    assert m["dflash_seconds_per_token"] == pytest.approx(mean["benchmark"], rel=1e-9)
    assert m["dflash_decode_speedup"] == pytest.approx(mean["probe"] / mean["benchmark"], rel=1e-9)
    # The table says what the reports say, with its definitions.
    rounds = sum(r["round_count"] for r in reports["benchmark"])
    assert f"tokens per round  {16 / rounds:.3f}   (tokens given out / rounds" in result.stdout
    drafted = sum(r["accepted_draft_total"] + r["rejected_draft_total"] for r in reports["benchmark"])
    accepted = sum(r["accepted_draft_total"] for r in reports["benchmark"])
    assert f"acceptance        {accepted / drafted:.3f}   (drafts accepted / drafts verified)" in result.stdout
    assert f"speed-up          {m['dflash_decode_speedup']:.3f}" in result.stdout
    # Of two pairs the second begins with the candidate.
    order = re.findall(r"^pair \d of 2, (\w+):", result.stdout, re.M)
    assert order == ["serial", "DFlash", "DFlash", "serial"]


def test_a_submit_run_of_a_fixture(place):
    """Three pairs, the mode's own count of tokens, and a golden of the pool instead of an own one."""
    fixture = TRACKS[DFLASH] / "pool" / "novel-eliot.golden.json"
    result = place.run(DFLASH, "--local-submit", MLXFAST_DFLASH_LOCAL_SUBMIT_TOKENS="4",
                       MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE=fixture)
    assert result.returncode == 0, result.stdout + result.stderr
    m = place.assert_sealed()["metrics"]
    assert (m["mode"], m["decode_tokens"], m["accepted_pair_count"]) == ("dflash-local-submit", 4, 3)
    # A pinned prompt has its normaliser.
    (entry,) = [e for e in json.loads(place.contract.read_text())["timed_prompt_pool"]
                if e["sha256"] == hashlib.sha256(fixture.read_bytes()).hexdigest()]
    assert m["scoring_normalized"] is True
    assert m["noop_reference_decode_speedup"] == entry["noop_decode_speedup"]
    assert m["golden_hash"] == hashlib.sha256(fixture.read_bytes()).hexdigest()
    assert not (place.folder / "dflash" / "golden.json").exists()


def test_a_dflash_drift_that_is_allowed_is_recorded(place):
    path, name, expected, actual = drifted(place, DFLASH, "case")
    result = place.run(DFLASH, MLXFAST_CORRECTNESS_GOLDEN_PATH=path, MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT="1")
    assert result.returncode == 0, result.stdout + result.stderr
    document = place.assert_sealed()
    m = document["metrics"]
    assert document["passed"] is False and m["passed_correctness"] is False
    assert m["public_drift_tripwire_passed"] is False and m["dflash_decode_speedup"] > 0
    (found,) = m["public_drift_divergences"]
    assert found["case"] == name and found["step"] == 5
    assert (found["expected_token"], found["actual_token"]) == (expected, actual)
    assert "NOT passed: drift" in result.stdout


def test_a_leg_that_fails_leaves_no_score(place):
    golden = json.loads((TRACKS[DFLASH] / "pool" / "novel-eliot.golden.json").read_text())
    golden["reference_seed_token"] ^= 1
    fixture = place.folder / "fixture.json"
    fixture.write_text(json.dumps(golden))
    result = place.run(DFLASH, MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE=fixture)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "decode_seed_token_mismatch" in result.stderr and "no score was written" in result.stderr
    place.assert_nothing_written()


def test_a_folder_that_is_no_drafter_is_told_in_the_engines_words(place):
    result = place.run(DFLASH, MLXFAST_DFLASH_DRAFTER_DIR=NANO)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "CONFIG-INVALID" in result.stderr and str(NANO / "config.json") in result.stderr
    assert "field block_size" in result.stderr and "no score was written" in result.stderr
    place.assert_nothing_written()


def test_no_reader_does_not_block_and_is_told(place):
    result = place.run(DFLASH, MLXFAST_GPU_TEMP_CMD="exit 1", MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "temperature not known: MLXFAST_GPU_TEMP_CMD gives none" in result.stdout
    place.assert_sealed()


def test_a_speed_that_is_not_believed_does_not_pass(place):
    contract = json.loads(place.contract.read_text())
    contract["block_decode"] |= {"raw_speedup_min": 1e5, "raw_speedup_max": 1e6}
    place.contract.write_text(json.dumps(contract))
    result = place.run(DFLASH)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "NOT passed: RAW-SPEEDUP-IMPLAUSIBLE" in result.stdout
    assert place.assert_sealed()["passed"] is False
