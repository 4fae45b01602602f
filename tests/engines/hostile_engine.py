#!/usr/bin/python3
"""An engine that wants to be ranked for what it did not do. Honest as scripted_engine.py, whose
functions it takes, but for one trick that the script's key "evil" names: see TRICKS at the end."""

import json
import os
import pathlib
import sys
import time

_honest = pathlib.Path(__file__).resolve().parent / "scripted_engine.py"
_source = _honest.read_text()
exec(compile(_source[:_source.rindex("main()")], str(_honest), "exec"))  # all but its last line

hello = {"id": 0, "nonce": NONCE, "ok": True, "protocol_version": 1, "backend": "hostile",
         "device": "python", "capabilities": ["free_run_decode"], "spec_modes": ["serial"]}
where = dict(zip(argv, argv[1:]))  # the last --resource is the script
weights = pathlib.Path(where["--weights"])


def text(reply):
    return json.dumps(reply, separators=(",", ":"))


def at(kind, change):
    """`change` makes the bytes of the first answer of this kind."""
    def serve(q, seen):
        reply = answer(q)
        send_raw(change(reply) if q["kind"] == kind and seen[kind] == 1
                 else (text(reply) + "\n").encode())
    return serve


def drip(reply):
    for byte in (text(reply) + "\n").encode():
        send_raw(bytes([byte]))
        time.sleep(0.3)
    return b""


def stop_talking(reply):
    os.close(1)
    time.sleep(1000)


def long_line(reply):
    piece = b"x" * (1 << 20)
    send_raw(b'{"id":')
    for _ in range(1024):
        send_raw(piece)
    return b"\n"


def leave_daemon(reply):
    """A process in a session of its own that keeps every pipe open."""
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(tell, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    with open(where["--resource"][len("script="):] + ".daemon", "wb") as file:
        file.write(os.read(told, 32))
    return (text(reply) + "\n").encode()


def shout(reply):
    line = b"noise " * 5000 + b"\n"
    for _ in range(1000):  # 30 MB
        os.write(2, line)
    return (text(reply) + "\n").encode()


def change_file(path, how):
    def change(reply):
        try:
            how(path)
        except OSError as e:
            sys.stderr.write(f"could not: {e.strerror}\n")
            sys.stderr.flush()
        return (text(reply) + "\n").encode()
    return change


def touch_back(path):
    """The same bytes and times again: only the inode's own change remembers."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(b"other weights")
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path):
    with open(path, "ab") as f:
        f.write(b"\n")


def add_file(path):
    (path.parent / "extra").write_text("x")


config = weights / "config.json"
myself = pathlib.Path(sys.argv[0])

TRICKS = {
    "none": lambda q, seen: send(answer(q)),
    "stays": lambda q, seen: send(answer(q)),
    "drip": at("prefill", drip),
    "long_line": at("prefill", long_line),
    "bom": at("prefill", lambda r: b"\xef\xbb\xbf" + text(r).encode() + b"\n"),
    "spaces": at("prefill", lambda r: b"  \t" + json.dumps(r, indent=None).encode() + b" \t \n"),
    "crlf": at("prefill", lambda r: text(r).encode() + b"\r\n"),
    "duplicate_key": at("prefill", lambda r: text(r)[:-1].encode() + b',"ok":true}\n'),
    "deep": at("prefill", lambda r: text(r)[:-1].encode() + b',"error":' + b"[" * 20000 +
               b"]" * 20000 + b"}\n"),
    "huge_int": at("prefill", lambda r: text({**r, "token": 10 ** 40}).encode() + b"\n"),
    "float_token": at("prefill", lambda r: text({**r, "token": 1.0}).encode() + b"\n"),
    "negative_token": at("prefill", lambda r: text({**r, "token": -1}).encode() + b"\n"),
    "nan": at("correctness_begin", lambda r: text({**r, "top_logits": [
        {"token": i, "logit": float("nan")} for i in range(8)]}).encode() + b"\n"),
    "infinite": at("correctness_begin", lambda r: text(r).replace("8.0", "1e999").encode() + b"\n"),
    "nul": at("prefill", lambda r: text(r)[:-1].encode() + b',"error":"a\x00b"}\n'),
    "not_utf8": at("prefill", lambda r: text(r)[:-1].encode() + b',"error":"\xff"}\n'),
    "stop_talking": at("prefill", stop_talking),
    "daemon": at("prefill", leave_daemon),
    "shout": at("prefill", shout),
    "weights_appended": at("prefill", change_file(config, append)),
    "weights_and_back": at("prefill", change_file(config, touch_back)),
    "weights_removed": at("prefill", change_file(config, os.unlink)),
    "weights_added": at("prefill", change_file(config, add_file)),
    "engine_appended": at("prefill", change_file(myself, append)),
    "weights_back_while_checked": at("correctness_begin", change_file(config, touch_back)),
    "engine_appended_while_checked": at("correctness_begin", change_file(myself, append)),
    "engine_removed": at("prefill", change_file(myself, os.unlink)),
    "only_timed": lambda q, seen: send(
        answer(q) if not q["kind"].startswith("correctness") else
        {**answer(q), "token": 0, "top_logits": top_logits(0)}),
}


def main():
    serve = TRICKS[script["evil"]]
    send(hello)
    seen = {}
    for line in sys.stdin:
        q = json.loads(line)
        seen[q["kind"]] = seen.get(q["kind"], 0) + 1
        serve(q, seen)
    if script["evil"] == "stays":
        time.sleep(1000)  # does not care that its input ended


main()
