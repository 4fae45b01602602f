"""Writes a contract with the pinned model's revision and the pool of goldens that lie in a folder.

usage: fill_contract.py TEMPLATE OUT REVISION [POOL]       without POOL the pool is left out
"""

import hashlib
import json
import pathlib
import sys


def main():
    template, out, revision = sys.argv[1:4]
    contract = json.loads(pathlib.Path(template).read_text())
    contract["target"]["upstream_revision"] = revision
    contract.pop("timed_prompt_pool", None)
    if len(sys.argv) > 4:
        pool = []
        for path in sorted(pathlib.Path(sys.argv[4]).glob("*.golden.json")):
            data = path.read_bytes()
            pool.append({"path": f"pool/{path.name}", "sha256": hashlib.sha256(data).hexdigest(),
                         "bytes": len(data)})
        contract["timed_prompt_pool"] = pool
    pathlib.Path(out).write_text(json.dumps(contract, indent=2) + "\n")


if __name__ == "__main__":
    main()
