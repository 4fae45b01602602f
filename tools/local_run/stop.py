"""How a local run ends early, and how it runs the judge's programs."""

import os
import signal
import subprocess
import sys

PASSED, FAILED, USAGE, NOT_RUN, INTERRUPTED = 0, 1, 2, 3, 130
GRACE = 20  # seconds that a program gets to put its engine away


class Stop(Exception):
    """Ends the run with an exit code and one line (or several) for people."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.text = code, text


class Interrupted(Exception):
    """A signal asked the run to stop."""


starting = False  # a program is being started: a signal waits until it is known
pending = None


def on_signals():
    """Ctrl-C, and what a terminal or a supervisor sends. What was ignored before (nohup) stays so."""

    def handler(number, _frame):
        global pending
        if starting:
            pending = number
            return
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda *_: None)  # one is enough: the rest is putting away
        raise Interrupted(signal.Signals(number).name)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, handler)


def run(arguments, cwd=None, env=None, stderr=None):
    """Runs a program in a process group of its own: (exit code, stdout as text). A signal to us is
    passed on once, and the program is waited for: it puts its engine away and writes nothing."""
    global starting
    starting = True
    child = subprocess.Popen([os.fspath(a) for a in arguments], cwd=cwd, env=env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                             text=True, errors="replace", preexec_fn=os.setpgrp)
    starting = False
    try:
        if pending is not None:
            raise Interrupted(signal.Signals(pending).name)
        out, _ = child.communicate()
    except Interrupted:
        put_away(child)
        raise
    return child.returncode, out


def put_away(child):
    try:
        os.killpg(child.pid, signal.SIGINT)
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    except ProcessLookupError:
        child.wait()


def guarded(name, main):
    """Runs main and turns its end into an exit code."""
    on_signals()
    try:
        code = main()
        sys.stdout.flush()
        return code
    except Stop as stop:
        sys.stdout.flush()
        print(f"{name}: {stop.text}", file=sys.stderr)
        return stop.code
    except Interrupted as what:
        print(f"{name}: interrupted ({what}); nothing was left running, no score was written",
              file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED


def say(text=""):
    print(text, flush=True)


def step(text):
    say(f"\n== {text}")
