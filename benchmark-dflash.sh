#!/usr/bin/env bash
# Local run of the DFlash track: drift tripwire, cool gate, serial and DFlash legs, score.json.
# ./benchmark-dflash.sh --help
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null || {
    echo "benchmark-dflash.sh: python3 is missing: run tools/install-deps" >&2
    exit 2
}
exec python3 -B "$here/tools/local_run/dflash.py" "$@"
