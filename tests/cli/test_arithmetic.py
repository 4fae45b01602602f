"""engine_arithmetic, a key of a contract: who must say that he computes strictly, who is refused, what is sealed."""

import subprocess

import pytest

from conftest import BUILD
from judge_kit import Kit
from test_bench_worker import Worker


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


def says(arithmetic):
    return {"hello": {"arithmetic": arithmetic}}


def test_an_honest_engine_passes(kit):
    kit.write_contract(engine_arithmetic="strict")
    result = kit.iterate(script=says("strict"), env={"BENCH_WORKER_ARITHMETIC": "fast"})
    assert result.returncode == 0, result.stderr
    m = kit.metrics()
    assert (m["engine_backend"], m["engine_device"], m["engine_arithmetic"]) == ("scripted", "python", "strict")
    told = kit.log()["env"]
    assert told["BENCH_WORKER_ARITHMETIC"] == "strict" and told["BENCH_WORKER_ARITHMETIC_HELLO"] == "1"


@pytest.mark.parametrize("key", [None, "any"])
def test_without_a_requirement_every_engine_passes(kit, key):
    kit.write_contract(engine_arithmetic=key)
    result = kit.iterate(script=says("fast"), env={"BENCH_WORKER_ARITHMETIC": "fast"})
    assert result.returncode == 0, result.stderr
    assert kit.metrics()["engine_arithmetic"] == "fast"
    assert kit.log()["env"]["BENCH_WORKER_ARITHMETIC"] == "fast"
    assert kit.iterate().returncode == 0 and "engine_arithmetic" not in kit.metrics()


@pytest.mark.parametrize("script, value", [(says("fast"), "fast"), (None, "absent")])
def test_another_arithmetic_is_refused(kit, script, value):
    kit.write_contract(engine_arithmetic="strict")
    result = kit.iterate(script=script)
    assert result.returncode != 0
    assert f"ENGINE-ARITHMETIC-MISMATCH: the contract requires strict arithmetic, and the engine's hello does not " \
           f"say that it is (field arithmetic, value {value})" in result.stderr
    kit.assert_nothing_left()


def test_the_contract_in_words(kit):
    def explained(**key):
        kit.write_contract(**key)
        done = subprocess.run([BUILD / "benchd", "explain-contract", kit.contract], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "ENGINE-ARITHMETIC-MISMATCH" in explained(engine_arithmetic="strict")
    assert "may choose its arithmetic" in explained(engine_arithmetic="any")
    assert "engine_arithmetic" not in explained()


def test_the_worker_says_it_when_asked(build):
    worker = Worker(build, "--arithmetic", "fast", env={"BENCH_WORKER_ARITHMETIC_HELLO": "1"})
    assert worker.hello["arithmetic"] == "strict"  # what it does, not what it may
    worker.close()
    worker = Worker(build, env={"BENCH_WORKER_ARITHMETIC_HELLO": "0"})
    assert "arithmetic" not in worker.hello
    worker.close()
