"""The peak memory of a program: Linux counts, for a child, the copy of its parent before exec too, so it is
started from a small one."""

import json
import subprocess

LAUNCHER = """
import json, os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
sys.stderr.write("\\n" + json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]) + "\\n")
"""


def run_measured(command, timeout=300):
    """(exit code, what it printed, peak in KiB)"""
    result = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", LAUNCHER, *map(str, command)],
                            capture_output=True, text=True, timeout=timeout)
    code, peak = json.loads(result.stderr.strip().splitlines()[-1])
    return code, result.stdout, peak
