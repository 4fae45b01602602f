#!/usr/bin/env bash
# From a fresh clone to verified weights: builds what is missing, then `mlxfast fetch TRACK`.
# usage: ./setup.sh [TRACK] [FLAGS OF mlxfast fetch]
#
#   TRACK   default laguna-nano-serial-v1, whose model is bundled; laguna-xs-2.1-dflash-v1 is 21.6 GB
#
# environment:
#   BUILD   where the programs are built, as for make; default build
#   MLXFAST_SKIP_WEIGHTS_DOWNLOAD=1, MLXFAST_REFERENCE_...: see docs/setup.md, or
#   build/mlxfast fetch --help
#
# exit codes: 0 ready; 1 something failed; 2 usage; 130 interrupted
set -eu
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

case ${1:-} in
-h | --help)
    sed -n '2,/^set -eu/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 0
    ;;
esac
track=laguna-nano-serial-v1
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    track=$1
    shift
fi
case $track in
'' | */* | .*)
    echo "setup: a track's id is a name, not '$track'; try ./setup.sh --help" >&2
    exit 2
    ;;
esac
if [ ! -f "tracks/$track/fetch.json" ]; then
    echo "setup: there is no track '$track' to fetch for: tracks/$track/fetch.json is missing" >&2
    exit 1
fi

build=${BUILD:-build}
for program in benchd bench-worker mlxfast; do
    if [ ! -x "$build/$program" ]; then
        echo "building in $build"
        tools/install-deps build
        mkdir -p "$build"
        if ! make -j"$(nproc 2>/dev/null || echo 2)" BUILD="$build" all >"$build/setup-build.log" 2>&1; then
            tail -n 40 "$build/setup-build.log" >&2
            echo "setup: the build failed; $build/setup-build.log has it whole" >&2
            exit 1
        fi
        break
    fi
done

case $build in
/*) program=$build/mlxfast ;;
*) program=$PWD/$build/mlxfast ;;
esac
# Paths that the caller gives are meant from where he stands.
tracks=$PWD/tracks/$track
cd "$from"
exec "$program" fetch "$tracks" "$@"
