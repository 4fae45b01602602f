"""The environment variables of local runs: one table for parsing, for --help, and for the notes about
those that have no meaning here."""

import os
import pathlib
import textwrap

from stop import Stop, USAGE

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERIAL, DFLASH = "serial", "dflash"
BOTH = (SERIAL, DFLASH)

SERIAL_TRACK = "tracks/laguna-nano-serial-v1"
DFLASH_TRACK = "tracks/laguna-nano-dflash-v1"

# (name, scripts, default, meaning). Relative defaults are meant from the repository's root.
VARIABLES = [
    ("MLXFAST_SCORE_PATH", BOTH, "score.json", "where the score goes; its seal goes beside it"),
    ("MLXFAST_WEIGHTS_PATH", BOTH, "models/laguna-nano", "the model's folder"),
    ("MLXFAST_CONTRACT_PATH", (SERIAL,), f"{SERIAL_TRACK}/contract.json", "the track's contract"),
    ("MLXFAST_DFLASH_CONTRACT_PATH", (DFLASH,), f"{DFLASH_TRACK}/contract.json",
     "the track's contract"),
    ("MLXFAST_DFLASH_DRAFTER_DIR", (DFLASH,), "models/laguna-nano-dflash",
     "the drafter's folder; MLXFAST_DFLASH_ASSISTANT_DIR is another name for it"),
    ("MLXFAST_ENGINE_PATH", BOTH, "build/bench-worker",
     "the engine; MLXFAST_SWIFT_BIN is another name for it"),
    ("MLXFAST_CORRECTNESS_GOLDEN_PATH", BOTH, "public.golden.json beside the contract",
     "the public golden: of the drift tripwire and, in benchmark-dflash.sh, of the timed prompt"),
    ("MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE", (DFLASH,), "",
     "a DFlash golden to time instead of one that the candidate's own reference makes"),
    ("MLXFAST_DFLASH_BLOCK_SIZE", (DFLASH,), "the contract's block_size", "rows of a round, 2 to 16"),
    ("MLXFAST_DFLASH_LOCAL_ITERATE_TOKENS", (DFLASH,), "the contract's, 64",
     "timed tokens of --local-iterate, 1 to 512"),
    ("MLXFAST_DFLASH_LOCAL_SUBMIT_TOKENS", (DFLASH,), "the contract's, 128",
     "timed tokens of --local-submit, 1 to 512"),
    ("MLXFAST_DFLASH_LOCAL_PAIRS", (DFLASH,), "1, --local-submit 3",
     "pairs of one serial and one DFlash leg, 1 to 32; their order alternates"),
    ("MLXFAST_DFLASH_LOCAL_WORK_DIR", (DFLASH,), ".mlxfast-local-dflash",
     "the legs' files: emitted.json, golden.json, reference.log, probe-N.json, benchmark-N.json, tripwire.json"),
    ("MLXFAST_LOCAL_WORK_DIR", (SERIAL,), ".mlxfast-local-serial", "the tripwire's report"),
    ("MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT", BOTH, "0",
     "1: go on after the tripwire; passed_correctness is false and the diverging tokens are recorded"),
    ("MLXFAST_LOCAL_COOL_GATE", BOTH, "1", "0: time at any temperature"),
    ("MLXFAST_GPU_TEMP_CMD", BOTH, "",
     "a command for /bin/sh that prints the temperature in degrees Celsius, of whatever the engine runs "
     "on; without it the CPU's hottest sensor is read"),
    ("MLXFAST_LOCAL_COOL_TARGET_C", BOTH, "40", "the temperature that the gate waits for"),
    ("MLXFAST_LOCAL_RUN_GUARD", BOTH, "1", "0: no lock, and no look for leftover engines"),
    ("MLXFAST_LOCAL_RUN_LOCK_DIR", BOTH, "/tmp/mlxfast-local-run-<user id>",
     "where the lock lies; both scripts share it"),
    ("MLXFAST_LOCAL_BUILD", BOTH, "1",
     "0: never build, only say when the engine is older than its sources"),
]

ALIASES = {"MLXFAST_SWIFT_BIN": "MLXFAST_ENGINE_PATH",
           "MLXFAST_DFLASH_ASSISTANT_DIR": "MLXFAST_DFLASH_DRAFTER_DIR"}

# Accepted, because scripts of the original set them; what a run says when it meets one.
NO_TRANSFORM = "there is no transform: weights are used as they were published"
RANKED = "only ranked runs know it; the contract declares its value"
OTHER_ENGINE = "a switch of another engine"
NO_MEANING = {
    "MLXFAST_VERIFY_TRANSFORM": NO_TRANSFORM,
    "MLXFAST_MAX_WEIGHTS_BYTES": "`benchd validate-weights` knows it; a local run has no limit",
    "MLXFAST_REFERENCE_DIR": NO_TRANSFORM,
    "MLXFAST_DFLASH_DECODE_TOKENS": RANKED,
    "MLXFAST_DFLASH_CORRECTNESS_TOKENS": RANKED,
    "MLXFAST_DFLASH_DECODE_SPEEDUP_FLOOR": RANKED,
    "MLXFAST_OFFICIAL_BENCHMARK_RUN": "a local run is never an official one",
    "MLX_DFLASH_TRACE_CACHE_SEAM": OTHER_ENGINE,
    "MLX_DFLASH_CPU_ACCEPT_WALK": OTHER_ENGINE,
    "MLX_DFLASH_DRAFTER_FUSE_QKV": OTHER_ENGINE,
    "MLX_DFLASH_DRAFTER_FUSE_MLP_GATE_UP": OTHER_ENGINE,
    "LAGUNA_ATTENTION_INT8": OTHER_ENGINE,
    "DARKBLOOM_STARTUP_MEMORY_PROFILE": OTHER_ENGINE,
    "DARKBLOOM_TRACE_FUSION": OTHER_ENGINE,
    "DARKBLOOM_DECODE_ASYNC_STAGE": OTHER_ENGINE,
    "DARKBLOOM_PREFILL_ASYNC_LADDER": OTHER_ENGINE,
    "DARKBLOOM_ATTN_PROJECTION_ASYNC": OTHER_ENGINE,
    "DEVELOPER_DIR": "it chooses a compiler of another system",
}


class Settings:
    """What the environment says, checked. environment: a mapping such as os.environ."""

    def __init__(self, script, environment):
        self.script = script
        self.environment = {k: v for k, v in environment.items() if v != ""}
        for alias, name in ALIASES.items():
            value = self.environment.get(alias)
            if value is None or not self.has(name):
                continue
            if self.environment.setdefault(name, value) != value:
                raise Stop(USAGE, f"{name} and {alias} are two names of one setting and differ "
                                  f"('{self.environment[name]}', '{value}')")

    def has(self, name):
        return any(row[0] == name and self.script in row[1] for row in VARIABLES)

    def text(self, name, default=None):
        assert self.has(name), name
        return self.environment.get(name, default)

    def path(self, name, default=None):
        """What the caller gives is meant from where he stands, a default from the root."""
        value = self.text(name)
        if value is not None:
            return pathlib.Path(os.path.abspath(value))
        return None if default is None else ROOT / default

    def switch(self, name, default):
        value = self.text(name, "1" if default else "0")
        if value not in ("0", "1"):
            raise Stop(USAGE, f"{name} is 0 or 1, not '{value}'")
        return value == "1"

    def count(self, name, least, most, default=None):
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise Stop(USAGE, f"{name} is a whole number from {least} to {most}, not '{value}'")
        return int(value)

    def number(self, name, default):
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not -100.0 <= number <= 1000.0:
            raise Stop(USAGE, f"{name} is a number, not '{value}'")
        return number

    def notes(self):
        """Lines about variables that are set and do nothing."""
        found = []
        for name, why in NO_MEANING.items():
            if name in self.environment:
                found.append(f"{name} has no meaning here: {why}")
        known = {row[0] for row in VARIABLES} | set(ALIASES) | set(NO_MEANING)
        for name in sorted(self.environment):
            if name.startswith(("MLXFAST_DFLASH_", "MLXFAST_LOCAL_")) and name not in known \
                    and not name.startswith("MLXFAST_LOCAL_TEST_"):
                found.append(f"{name} is not a variable of a local run (a misspelling?)")
        return found


def help_text(script, usage, about, ends):
    """The whole --help, 80 columns."""
    wrap = lambda text, indent: textwrap.fill(text, 80, initial_indent=indent,
                                              subsequent_indent=indent)
    lines = [usage, "", *(wrap(part, "") for part in about), "", "environment:"]
    for name, scripts, default, meaning in VARIABLES:
        if script in scripts:
            lines += [f"  {name}", wrap(meaning + (f" (default: {default})" if default else ""),
                                        "      ")]
    lines += ["", "accepted, without meaning here:",
              *(wrap(f"{name}: {why}", "  ").replace("\n  ", "\n      ")
                for name, why in NO_MEANING.items()), ""]
    lines += [wrap(part, "") for part in ends]
    return "\n".join(lines)
