"""The cool gate: waits until the machine is cool, gives up when it stops cooling, and never blocks a
local run for want of a thermometer."""

import os
import pathlib
import re
import subprocess
import time

TARGET_C = 40.0
POLL_S = 10.0
PROGRESS_C, STALL_S, NO_STALL_BEFORE_S = 0.25, 90.0, 180.0
CEILING_S = 900.0
HINT_S = 60.0
CPU_CHIPS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "scpi_sensors"}
CPU_ZONES = {"x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal"}

COOL, UNREAD, STALLED, CEILING, OFF = "cool", "no reader", "stalled", "ceiling", "off"


def wait(read, target, clock, sleep, say):
    """(verdict, last temperature or None, seconds waited). read() gives a temperature or None."""
    began = clock()
    best, best_at, hinted = None, began, False
    while True:
        value = read()
        waited = clock() - began
        if value is None:
            return UNREAD, best, waited
        if value <= target:
            return COOL, value, waited
        if best is None or best - value >= PROGRESS_C:
            best, best_at = value, clock()
        if waited >= CEILING_S:
            return CEILING, value, waited
        if waited >= NO_STALL_BEFORE_S and clock() - best_at >= STALL_S:
            return STALLED, value, waited
        if waited == 0:
            say(f"cool gate: {value:.1f} C, waiting for {target:g} C")
        elif waited >= HINT_S and not hinted:
            say(f"cool gate: still {value:.1f} C; fans at 70 % would help, where they can be set")
            hinted = True
        sleep(POLL_S)


# ---- Thermometers ----


def command_reader(command):
    """The first number that the command prints; None when it fails."""
    patience = float(os.environ.get("MLXFAST_LOCAL_TEST_COMMAND_S", "10"))

    def read():
        try:
            done = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, timeout=patience,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  errors="replace", check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        number = re.search(r"-?\d+(\.\d+)?", done.stdout)
        return float(number.group()) if done.returncode == 0 and number else None

    return read


def sensors(root=pathlib.Path("/sys/class")):
    """Files with the CPU's temperatures in thousandths of a degree."""
    found = []
    for chip in sorted((root / "hwmon").glob("hwmon*")):
        if read_text(chip / "name") in CPU_CHIPS:
            found += sorted(chip.glob("temp*_input"))
    if not found:
        for zone in sorted((root / "thermal").glob("thermal_zone*")):
            if read_text(zone / "type") in CPU_ZONES:
                found.append(zone / "temp")
    return found


def read_text(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def sensor_reader(files):
    def read():
        values = []
        for file in files:
            try:
                values.append(int(read_text(file)) / 1000.0)
            except ValueError:
                pass
        return max(values) if values else None

    return read


def reader(command):
    """(read, what it reads)."""
    if command is not None:
        return command_reader(command), "MLXFAST_GPU_TEMP_CMD"
    files = sensors(pathlib.Path(os.environ.get("MLXFAST_LOCAL_TEST_SENSORS", "/sys/class")))
    return sensor_reader(files), "the CPU's hottest sensor"


class Gate:
    """One gate for all legs of a run; remembers what it found before each."""

    def __init__(self, enabled, command, target, say):
        self.enabled, self.target, self.say = enabled, target, say
        self.read, self.source = reader(command)
        self.found = []  # (leg, verdict, temperature, seconds waited)
        self.clock, self.sleep = time.monotonic, time.sleep
        if os.environ.get("MLXFAST_LOCAL_TEST_CLOCK") == "1":  # of tests: waiting takes no time
            passed = [0.0]
            self.clock = lambda: passed[0]
            self.sleep = lambda seconds: passed.__setitem__(0, passed[0] + seconds)

    def before(self, leg):
        """True: go on."""
        if self.enabled:
            verdict, value, waited = wait(self.read, self.target, self.clock, self.sleep, self.say)
        else:
            verdict, value, waited = OFF, self.read(), 0.0
        self.found.append((leg, verdict, value, waited))
        return verdict in (COOL, UNREAD, OFF)

    def summary(self):
        """The condition that the figures were taken under, in words."""
        values = [value for _, _, value, _ in self.found if value is not None]
        if not values:
            return (f"temperature not known: {self.source} gives none"
                    + ("" if self.enabled else "; the gate was off"))
        span = f"{min(values):.1f}" + (f" to {max(values):.1f}" if max(values) > min(values) else "")
        text = f"{span} C before the legs ({self.source})"
        if not self.enabled:
            return text + "; the gate was off"
        if any(verdict == UNREAD for _, verdict, _, _ in self.found):
            return text + "; not read before every leg"
        return text + f", waited {sum(waited for *_, waited in self.found):.0f} s"
