#!/usr/bin/env bash
# Local run of the serial track: drift tripwire, cool gate, timing, score.json. ./benchmark.sh --help
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null || {
    echo "benchmark.sh: python3 is missing: run tools/install-deps" >&2
    exit 2
}
exec python3 -B "$here/tools/local_run/serial.py" "$@"
