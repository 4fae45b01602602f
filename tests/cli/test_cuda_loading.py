"""What a worker with the CUDA backend says before and while it loads: where there is no device, or too little memory,
or no low profile. For builds with CUDA=1 or CUDA=emulated: BUILD=build/cuda-emulated."""

import json
import os
import re
import signal
import subprocess

import pytest

EXIT_RUN = 1


@pytest.fixture(scope="module")
def ask(build, nano):
    """generate with the backend, under an emulator's environment: (exit code, stderr)."""
    def generate(*flags, **environment):
        command = [build / "bench-worker", "generate", "--weights", nano, "--backend", "cuda", "--prompt", "Once", "-n", "1"]
        answer = subprocess.run([*command, *flags], env={**os.environ, **environment}, capture_output=True, text=True,
                                timeout=300, check=False)
        return answer.returncode, answer.stderr

    code, errors = generate(CUDA_EMULATOR_MEMORY=str(16 << 30))
    if "BACKEND-NOT-BUILT" in errors:
        pytest.skip("needs a build with CUDA=1 or CUDA=emulated")
    if "CUDA-NO-DEVICE" in errors:
        pytest.skip("needs a CUDA device, or a build with CUDA=emulated")
    assert code == 0, errors
    return generate


@pytest.fixture(scope="module")
def emulated(ask):
    if "cuda emulated" not in ask()[1]:
        pytest.skip("needs a build with CUDA=emulated")
    return ask


def test_line_names_the_device_and_what_is_free(ask):
    code, errors = ask()
    assert code == 0
    line = re.search(r"memory profile full \(auto\): [\d.]+ MB of [\d.]+ GB \(free on (.+)\); weights are copied to it",
                     errors)
    assert line and f"cuda {line[1]}, sm_" in errors, errors


def test_low_profile_is_refused(ask):
    code, errors = ask("--memory-profile", "low")
    assert code == EXIT_RUN
    assert errors.startswith("bench-worker: badValue: badValue(--memory-profile): ") and errors.count("\n") == 1


def test_too_little_memory_is_refused_before_loading(emulated):
    code, errors = emulated(CUDA_EMULATOR_MEMORY="400000000")
    assert code == EXIT_RUN and errors.count("\n") == 1
    needed = re.search(r"MEMORY-INSUFFICIENT: profile full needs ([\d.]+) MB \(of it [\d.]+ MB for weights, [\d.]+ MB for "
                       r"keys and values\), 400\.0 MB are free on emulated; lower --context", errors)
    assert needed and float(needed[1]) > 400, errors
    # what it asks for is enough, and not more than its own spare room too much
    bytes_needed = int(float(needed[1]) * 1e6) + 100000
    assert emulated(CUDA_EMULATOR_MEMORY=str(bytes_needed))[0] == 0


@pytest.mark.parametrize("environment, name", [
    ({"CUDA_EMULATOR_DRIVER": "0"}, "CUDA-NO-DEVICE"), ({"CUDA_EMULATOR_DEVICES": "0"}, "CUDA-NO-DEVICE"),
    ({"CUDA_EMULATOR_DRIVER": "12030"}, "CUDA-DRIVER-TOO-OLD"), ({"CUDA_EMULATOR_CC": "7.0"}, "CUDA-ARCHITECTURE"),
    ({"CUDA_EMULATOR_FAIL": "cudaSetDevice:1"}, "CUDA-FAILED")])
def test_device_that_cannot_be_used(emulated, environment, name):
    code, errors = emulated(**environment)
    assert code == EXIT_RUN and errors.startswith(f"bench-worker: {name}: ") and errors.count("\n") == 1, errors


@pytest.mark.parametrize("call, name", [
    ("cudaMalloc:20", "OUT-OF-MEMORY"), ("cudaMallocHost:1", ""), ("cudaMemcpyAsync:9", "CUDA-FAILED"),
    ("cudaEventRecord:2", "CUDA-FAILED")])
def test_call_that_fails_while_loading(emulated, call, name):
    code, errors = emulated(CUDA_EMULATOR_FAIL=call)
    assert code == EXIT_RUN, errors
    assert name in errors and errors.splitlines()[-1].startswith("bench-worker: "), errors


def sessions(build, nano, folder, failure):
    """Two sessions of one resident, of which a call fails: (whether it loaded, their answers)."""
    env = {**os.environ, "CUDA_EMULATOR_FAIL": failure}
    socket = folder / "s"
    resident = subprocess.Popen([build / "bench-worker", "resident", "--weights", nano, "--backend", "cuda", "--socket",
                                 socket], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    try:
        if not any("listens at" in line for line in resident.stderr):
            return False, []
        line = json.dumps({"id": 1, "kind": "prefill", "prompt_tokens": [5, 6, 7]}) + "\n"
        answers = []
        for _ in range(2):
            done = subprocess.run([build / "bench-worker", "--weights", nano], input=line, capture_output=True, text=True,
                                  timeout=300, check=False,
                                  env={**os.environ, "BENCH_WORKER_RESIDENT_SOCKET": str(socket)})
            answers.append(json.loads(done.stdout.splitlines()[1]))
        return True, answers
    finally:
        resident.send_signal(signal.SIGTERM)
        resident.communicate(timeout=60)


def test_memory_that_one_session_lacks_stops_no_other(emulated, build, nano, tmp_path_factory):
    """A graph of the first session's, whose rows the warm-up had not: the first that is made after the load."""
    fails, loads = 0, 32
    while loads - fails > 1:
        middle = (fails + loads) // 2
        loaded, answers = sessions(build, nano, tmp_path_factory.mktemp("r"), f"cudaGraphInstantiate:{middle}")
        if loaded:
            loads, found = middle, answers
        else:
            fails = middle
    first, second = found
    assert not first["ok"] and first["error"].startswith("OUT-OF-MEMORY: recording a forward: "), first
    assert second["ok"] and second["token"] >= 0, second
    loaded, (untroubled, _) = sessions(build, nano, tmp_path_factory.mktemp("r"), "cudaGraphInstantiate:1000")
    assert loaded and untroubled["token"] == second["token"]
