"""benchd quiet and the hidden cool gate, with thermometers that cool down, never do, lie or hang."""

import json
import os
import signal
import subprocess

import pytest

READERS = {"temperature", "clock", "gpu"}


@pytest.fixture
def place(tmp_path):
    """An environment in which only MLXFAST_GPU_TEMP_CMD is a thermometer, and waiting takes no time."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
    environment["MLXFAST_LOCAL_TEST_CLOCK"] = "1"
    return environment


@pytest.fixture
def gate(build, place):
    def call(command=None, timeout=60, **variables):
        environment = dict(place, **variables)
        if command is not None:
            environment["MLXFAST_GPU_TEMP_CMD"] = command
        return subprocess.run([build / "benchd", "--local-cool-gate-only"], env=environment, text=True,
                              capture_output=True, timeout=timeout)

    return call


def falling(folder, start, step):
    """A thermometer that falls by so much at every look."""
    state = folder / "looks"
    state.write_text("0")
    return f"n=$(cat {state}); echo $((n + 1)) >{state}; echo $(({start} - n * {step}))"


def test_a_cool_machine(gate):
    result = gate("echo 60")
    assert result.returncode == 0
    assert result.stderr == "local: cool gate: 60.0 C, cool (60 at most), waited 0 s; MLXFAST_GPU_TEMP_CMD\n"


def test_a_machine_that_cools_down(gate, tmp_path):
    result = gate(falling(tmp_path, 90, 5), MLXFAST_LOCAL_COOL_GATE_PHASE="decode")
    assert result.returncode == 0
    # 85 at the first look, since opening the gate reads nothing; six polls of 10 s to 60.
    assert "decode: cool gate: 90.0 C, waiting for 60 C" in result.stderr
    assert "decode: cool gate: 60.0 C, cool (60 at most), waited 60 s" in result.stderr


@pytest.mark.parametrize("command, said", [
    ("echo 80", "aborted, 80.0 C after 180 s and not getting cooler, the limit is 60 C"),
    ("echo 60.01", "aborted, 60.0 C after 180 s and not getting cooler"),
])
def test_a_machine_that_never_cools(gate, command, said):
    result = gate(command)
    assert result.returncode == 1
    assert f"local: cool gate: {said}" in result.stderr


def test_a_machine_that_cools_too_slowly(gate, tmp_path):
    result = gate(falling(tmp_path, 190, 1), MLXFAST_LOCAL_COOL_TARGET_C="40")
    # From 190 every value down to 150 is none of a sensor: three of them, and no reader.
    assert result.returncode == 0 and "skipped" in result.stderr
    (tmp_path / "looks").unlink()
    result = gate(falling(tmp_path, 140, 1), MLXFAST_LOCAL_COOL_TARGET_C="40")
    assert result.returncode == 1
    assert "aborted, 50.0 C after 900 s, the limit is 40 C" in result.stderr


@pytest.mark.parametrize("command", [
    "echo rubbish", "true", "false", "echo 41; exit 3", "echo; echo 41", "echo 41 42", "echo nan",
    "exec /no/such/program", "printf '\\377\\000\\001'", "yes 41", "echo 1000", "kill -9 $$",
], ids=str)
def test_a_thermometer_that_says_nothing_usable(gate, command):
    result = gate(command)
    assert result.returncode == 0
    assert result.stderr == "local: cool gate: skipped, no usable temperature reader\n"


def test_a_thermometer_that_hangs(gate, tmp_path):
    """Bounded, and what it started is gone with it."""
    pid = tmp_path / "pid"
    result = gate(f"echo 41; sleep 1000 & echo $! >{pid}; wait")
    assert result.returncode == 0
    assert "skipped" in result.stderr
    try:  # gone, or dead and waiting for a slow init
        with open(f"/proc/{int(pid.read_text())}/stat") as stat:
            assert stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        pass


def test_off_and_misuse(gate, build, place):
    result = gate("echo 90", MLXFAST_LOCAL_COOL_GATE="0")
    assert (result.returncode, result.stderr) == (0, "local: cool gate: off, MLXFAST_LOCAL_COOL_GATE is 0\n")
    result = gate("echo 90", MLXFAST_LOCAL_COOL_TARGET_C="95")
    assert result.returncode == 0
    result = gate("echo 90", MLXFAST_LOCAL_COOL_TARGET_C="cold")
    assert result.returncode == 2 and "USAGE" in result.stderr and "cold" in result.stderr
    result = subprocess.run([build / "benchd", "--local-cool-gate-only", "--x"], env=place, text=True,
                            capture_output=True, timeout=60)
    assert result.returncode == 2 and "--x" in result.stderr
    # Hidden: not in the list, and only in the first place.
    usage = subprocess.run([build / "benchd", "--help"], text=True, capture_output=True, timeout=60)
    assert "--local-cool-gate-only" not in usage.stdout


def test_interrupted(build, place, tmp_path):
    """In the real wait of ten seconds a signal is answered at once."""
    up = tmp_path / "up"
    os.mkfifo(up)
    place.pop("MLXFAST_LOCAL_TEST_CLOCK")
    place["MLXFAST_GPU_TEMP_CMD"] = f"echo 90; echo x >{up}"
    process = subprocess.Popen([build / "benchd", "--local-cool-gate-only"], env=place, text=True,
                               stderr=subprocess.PIPE)
    up.read_text()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in errors


@pytest.fixture
def quiet(build, place):
    def call(*arguments, command=None, **variables):
        environment = dict(place, **variables)
        if command is not None:
            environment["MLXFAST_GPU_TEMP_CMD"] = command
        return subprocess.run([build / "benchd", "quiet", *arguments], env=environment, text=True,
                              capture_output=True, timeout=120)

    return call


@pytest.fixture
def contract(root, tmp_path):
    """The serial track's contract with a group quiet of its own."""

    def write(**members):
        whole = json.loads((root / "tracks/laguna-nano-serial-v1/contract.json").read_text())
        whole["quiet"] = {"load_max": 1e6, "gpu_use_max": 1, "celsius_max": 60, "temperature_required": True,
                          "wait_seconds": 900, "clock_floor_mhz": 0, "others_cpu_max": 1e6, **members}
        path = tmp_path / "contract.json"
        path.write_text(json.dumps(whole))
        return path

    return write


def test_a_ranked_run_would_start(quiet, contract):
    """A contract that lets any neighbour pass: the machine that tests run on is seldom quiet."""
    result = quiet("--contract", contract(), "--json", command="echo 41.5")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found) == {"readers", "quiescence", "temperature", "quiet", "verdict", "why"}
    assert set(found["readers"]) == READERS
    assert found["readers"]["temperature"] == "MLXFAST_GPU_TEMP_CMD"
    assert found["quiet"] is True and found["verdict"] is None and found["why"] == ""
    assert found["temperature"] == {"state": "fired", "waited_seconds": 0.0, "celsius": 41.5, "limit": 60.0,
                                    "reader": "MLXFAST_GPU_TEMP_CMD"}
    assert found["quiescence"]["state"] == "quiet"
    assert found["quiescence"]["load"] >= 0 and found["quiescence"]["others_cpu"] >= 0
    result = quiet("--contract", contract(), command="echo 41.5")
    assert result.returncode == 0
    assert "a ranked run would start\n" in result.stdout and "41.5 C (60 C at most)" in result.stdout


@pytest.mark.parametrize("members, command, verdict, why", [
    ({"load_max": 1e-9}, "echo 41", "QUIESCENCE-TIMEOUT", None),
    ({}, "echo 61", "COOL-GATE-TIMEOUT", "61.0 C, the limit is 60 C"),
    ({}, "echo rubbish", "TEMPERATURE-READER-MISSING", "no usable temperature"),
])
def test_a_ranked_run_would_not(quiet, contract, members, command, verdict, why):
    result = quiet("--contract", contract(**members), "--json", command=command)
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert (found["quiet"], found["verdict"]) == (False, verdict)
    assert why is None or found["why"] == why
    text = quiet("--contract", contract(**members), command=command)
    assert text.returncode == 1 and verdict in text.stdout
    assert ("declined: contention" in text.stdout) == (verdict == "QUIESCENCE-TIMEOUT")


def test_a_busy_neighbour_is_seen(quiet, contract):
    """A process that is none of ours, and takes what it gets of a processor."""
    neighbour = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        result = quiet("--contract", contract(others_cpu_max=0.05), "--json", command="echo 41")
    finally:
        neighbour.kill()
        neighbour.wait()
    found = json.loads(result.stdout)
    assert result.returncode == 1 and found["verdict"] == "QUIESCENCE-TIMEOUT"
    assert "others take" in found["why"]


def test_a_missing_reader_comes_before_a_busy_machine(quiet, contract):
    """As a ranked run, which is refused for it before it waits."""
    result = quiet("--contract", contract(load_max=1e-9), "--json")
    found = json.loads(result.stdout)
    assert found["verdict"] == ("QUIESCENCE-TIMEOUT" if found["readers"]["temperature"] else "TEMPERATURE-READER-MISSING")


def test_no_temperature_needed(quiet, contract):
    result = quiet("--contract", contract(temperature_required=False), "--json", command="false")
    assert result.returncode == 0
    assert json.loads(result.stdout)["temperature"]["state"] == "skipped-no-reader"


def test_gates_off_is_no_ranked_run(quiet, contract):
    result = quiet("--contract", contract(), "--json", command="echo 41", MLXFAST_LOCAL_COOL_GATE="0")
    assert result.returncode == 1
    assert json.loads(result.stdout)["verdict"] == "QUIET-GATES-DISABLED"


def test_usage(quiet, tmp_path):
    (tmp_path / "c.json").write_text("{}")
    for arguments in (["--contract", tmp_path / "c.json"], ["--contract", tmp_path / "none"], ["--no-such"],
                      ["--sampler-cost", "0"]):
        assert quiet(*arguments).returncode == 2


def test_sampler_cost(quiet):
    """The share itself is a measurement (docs/quiet.md); here it is only there."""
    result = quiet("--sampler-cost", "1", "--json")
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert found["samples"] >= 2 and found["seconds"] == 1 and found["sampler_share"] >= 0
    assert "% of a core" in quiet("--sampler-cost", "1").stdout
