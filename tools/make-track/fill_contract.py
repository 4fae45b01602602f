"""Writes a contract with the pinned model's revision and the pool of goldens that lie in a folder.

usage: fill_contract.py TEMPLATE OUT REVISION [POOL] [--noop FILE]     without POOL the pool is left out
--noop: noop.json of measure_noop.py, for each entry's noop_decode_speedup
"""

import argparse
import hashlib
import json
import pathlib


def pin(path, name):
    data = path.read_bytes()
    return {"path": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("template")
    parser.add_argument("out")
    parser.add_argument("revision")
    parser.add_argument("pool", nargs="?")
    parser.add_argument("--noop")
    o = parser.parse_args()
    contract = json.loads(pathlib.Path(o.template).read_text())
    contract["target"]["upstream_revision"] = o.revision
    contract.pop("timed_prompt_pool", None)
    if o.pool:
        noop = json.loads(pathlib.Path(o.noop).read_text())["prompts"] if o.noop else {}
        pool = []
        for path in sorted(pathlib.Path(o.pool).glob("*.golden.json")):
            entry = pin(path, f"pool/{path.name}")
            name = path.name.removesuffix(".golden.json")
            if o.noop:
                entry["noop_decode_speedup"] = noop[name]["noop_decode_speedup"]
            pool.append(entry)
        contract["timed_prompt_pool"] = pool
    pathlib.Path(o.out).write_text(json.dumps(contract, indent=2) + "\n")


if __name__ == "__main__":
    main()
