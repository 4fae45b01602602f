#!/usr/bin/env bash
# Makes a DFlash track ready, from nothing: builds and fetches what is missing, converts a drafter that
# is as published, checks target and drafter against the track's pins.
# usage: ./setup-dflash.sh [--track ID] [--verify-only | --print-paths]
#
#   --track ID      default laguna-nano-dflash-v1, whose models are bundled;
#                   laguna-xs-2.1-dflash-v1 is fetched: 22.5 GB, and 0.9 GB for the conversion
#   --verify-only   build, fetch and convert nothing: only check what is there
#   --print-paths   only print where things are, as NAME=PATH lines for export; checks nothing
#
# environment:
#   MLXFAST_REFERENCE_DIR      the target's folder, with the files of tracks/<ID>/target.sha256
#   MLXFAST_WEIGHTS_PATH       the folder that the engine loads, where it is another one (or the only
#                              one); its config.json may be tracks/<ID>/config.json
#   MLXFAST_DFLASH_DRAFTER_DIR the drafter's folder: the files of tracks/<ID>/drafter.sha256, or
#                              config.json and model.safetensors as published, which are converted
#                              to out/drafter/<ID> (MLXFAST_DFLASH_ASSISTANT_DIR is another name)
#   MLXFAST_DFLASH_ASSISTANT_BASE_URL   a mirror of the drafter's pinned files: nothing is converted then
#   MLXFAST_DFLASH_PUBLISHED_BASE_URL   where the drafter as published is; default the hub, at the
#                                       revision that the contract names
#   MLXFAST_SKIP_WEIGHTS_DOWNLOAD=1     fetch nothing: say what to put where
#   MLXFAST_REFERENCE_..., MLXFAST_HF_HOME: as for mlxfast fetch (docs/setup.md)
#   BUILD                      where the programs are built, as for make; default build
#
# A folder that is named is never fetched into. It holds the pinned files, a README.md and the lock of
# `mlxfast fetch` at most: links, hard links and other files are refused. Interrupted or killed, it is run again as it stands.
# exit codes: 0 ready; 1 something is missing or is not what is pinned; 2 usage; 130 interrupted
set -eu
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$PWD

say() { printf '%s\n' "$*"; }
refuse() {
    printf 'setup-dflash: %s\n' "$*" >&2
    exit 1
}
usage() {
    printf "setup-dflash: %s; try ./setup-dflash.sh --help\n" "$*" >&2
    exit 2
}

track=laguna-nano-dflash-v1
mode=setup
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        sed -n '2,/^set -eu/p' "$0" | sed '$d; s/^# \{0,1\}//'
        exit 0
        ;;
    --track)
        [ $# -ge 2 ] || usage "--track needs an id"
        track=$2
        shift
        ;;
    --track=*) track=${1#--track=} ;;
    --verify-only | --print-paths)
        [ "$mode" = setup ] || usage "--verify-only and --print-paths exclude each other"
        mode=${1#--}
        ;;
    *) usage "unknown argument '$1'" ;;
    esac
    shift
done

pins=tracks/$track
case $track in
'' | */* | .*) usage "a track's id is a name, not '$track'" ;;
laguna-nano-dflash-v1)
    target=$root/models/laguna-nano
    drafter=$root/models/laguna-nano-dflash
    ;;
*)
    target=
    drafter=
    ;;
esac
for file in contract.json target.sha256 drafter.sha256; do
    [ -f "$pins/$file" ] || refuse "there is no DFlash track '$track': $pins/$file is missing"
done

# All the files have their names; each was hashed before it got it.
is_whole() { # folder manifest
    local name
    [ -n "$1" ] || return 1
    while read -r name; do
        [ -f "$1/$name" ] || return 1
    done < <(awk '$1 !~ /^#/ && NF == 3 { print $3 }' "$2")
}

# Where things are. What the caller gives is meant from where he stands; an empty variable counts as
# not set.
placed() {
    case $1 in
    '' | /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "$from" "$1" ;;
    esac
}
given=$(placed "${MLXFAST_DFLASH_DRAFTER_DIR:-}")
alias=$(placed "${MLXFAST_DFLASH_ASSISTANT_DIR:-}")
if [ -n "$given" ] && [ -n "$alias" ] && [ "$given" != "$alias" ]; then
    refuse "MLXFAST_DFLASH_DRAFTER_DIR ($given) and MLXFAST_DFLASH_ASSISTANT_DIR ($alias) disagree"
fi
drafter=${given:-${alias:-$drafter}}
loaded=$(placed "${MLXFAST_WEIGHTS_PATH:-}")
reference=$(placed "${MLXFAST_REFERENCE_DIR:-}")
build=${BUILD:-build}
cached= # the target's folder, where it is one that mlxfast fetch chose
if [ -z "$reference$loaded$target" ] && [ -x "$build/mlxfast" ] && [ -f "$pins/fetch.json" ]; then
    fetched=$("$build/mlxfast" fetch "$PWD/$pins" --print-path) || fetched=
    # What an interrupted run left is fetched on, not taken.
    if is_whole "$fetched" "$pins/target.sha256"; then
        target=$fetched
        cached=$fetched
    fi
fi
reference=${reference:-${loaded:-$target}}
weights=${loaded:-$reference}
converted=$root/out/drafter/$track
published=$root/out/drafter-published/$track
if [ -z "$drafter" ] && [ -x "$build/mlxfast" ] && [ -f "$pins/fetch.json" ]; then
    fetched=$("$build/mlxfast" fetch "$PWD/$pins" --drafter --print-path 2>/dev/null) || fetched=
    if [ -d "$converted" ]; then
        drafter=$converted
    elif is_whole "$fetched" "$pins/drafter.sha256"; then
        drafter=$fetched
    fi
fi

pinned_bytes() { awk -v name="$2" '$1 !~ /^#/ && $3 == name { print $2 }' "$1"; }

# The drafter is as published when its values have another length than the pinned file.
needs_conversion() {
    [ -f "$drafter/model.safetensors" ] &&
        [ "$(stat -L -c %s "$drafter/model.safetensors")" != \
            "$(pinned_bytes "$pins/drafter.sha256" model.safetensors)" ]
}

if [ "$mode" = print-paths ]; then
    used=$drafter
    if needs_conversion && [ -d "$converted" ]; then used=$converted; fi
    printf 'MLXFAST_DFLASH_CONTRACT_PATH=%s\nMLXFAST_WEIGHTS_PATH=%s\nMLXFAST_DFLASH_DRAFTER_DIR=%s\n' \
        "$root/$pins/contract.json" "$weights" "$used"
    exit 0
fi

# What the pinned drafter was made of, where the track says so.
read -r repo revision source_sha converted_at < <(python3 -B -c 'import json, sys
s = json.load(open(sys.argv[1])).get("assistant", {}).get("source", {})
print(*(s.get(k, "") for k in ("model_id", "revision", "model_sha256", "converted_at")))' "$pins/contract.json") ||
    refuse "$pins/contract.json cannot be read"

build_programs() {
    for program in benchd bench-worker mlxfast; do
        if [ ! -x "$build/$program" ]; then
            say "building in $build"
            tools/install-deps build
            mkdir -p "$build"
            if ! make -j"$(nproc 2>/dev/null || echo 2)" BUILD="$build" all >"$build/setup-build.log" 2>&1; then
                tail -n 40 "$build/setup-build.log" >&2
                refuse "the build failed; $build/setup-build.log has it whole"
            fi
            break
        fi
    done
}

fetch() { # what arguments of mlxfast fetch
    local what=$1 code=0
    shift
    "$build/mlxfast" fetch "$root/$pins" "$@" >&2 || code=$?
    [ $code != 130 ] || exit 130
    [ $code = 0 ] || refuse "the $what was not fetched (above: why)"
}

# The drafter as published: its values are fetched, its config.json is that of the track without the record of
# the conversion. Only the values' SHA-256 is published, so their length is the server's word; the hash decides.
fetch_published() {
    local base=${MLXFAST_DFLASH_PUBLISHED_BASE_URL:-https://huggingface.co/$repo/resolve/$revision} bytes
    bytes=$(python3 -B -c 'import sys, urllib.request
request = urllib.request.Request(sys.argv[1], method="HEAD", headers={"User-Agent": "mlxfast"})
print(int(urllib.request.urlopen(request, timeout=60).headers["Content-Length"]))' "$base/model.safetensors" 2>&1) ||
        refuse "the drafter was not fetched: $base/model.safetensors: $(printf '%s' "$bytes" | tail -n 1)"
    mkdir -p "$published"
    printf '%s %s model.safetensors\n' "$source_sha" "$bytes" >"$published.sha256"
    fetch "drafter as published" --drafter --dir "$published" --manifest "$published.sha256" --base-url "$base" \
        --fallback none --link none
    python3 -B -c 'import json, sys
config = json.load(open(sys.argv[1]))
config.pop("_mlx_conversion", None)
json.dump(config, open(sys.argv[2], "w"), indent=2)' "$pins/drafter-config.json" "$published/config.json"
}

if [ "$mode" = setup ]; then
    build_programs
    case ${MLXFAST_SKIP_WEIGHTS_DOWNLOAD:-} in
    '' | 0)
        if [ -z "$reference" ] && [ -f "$pins/fetch.json" ]; then
            say "target: not here yet"
            fetch target
            reference=$("$build/mlxfast" fetch "$root/$pins" --print-path)
            weights=$reference
        elif [ -n "$cached" ]; then
            fetch target # what is wrong of it is fetched again; a lock makes it a moment
        fi
        if [ -z "$drafter" ] && [ -n "${MLXFAST_DFLASH_ASSISTANT_BASE_URL:-}" ]; then
            say "drafter: not here yet"
            fetch drafter --drafter
            drafter=$("$build/mlxfast" fetch "$root/$pins" --drafter --print-path)
        elif [ -z "$drafter" ] && [ -n "$source_sha" ] && [ -f "$pins/drafter-config.json" ]; then
            say "drafter: not here yet"
            fetch_published
            drafter=$published
        fi
        ;;
    esac
fi

# What is not there, with what to put where; all of it at once.
missing=0
list_files() { awk '$1 !~ /^#/ { printf "    %s (%s bytes)\n", $3, $2 }' "$1"; }
if [ -z "$reference" ] || [ ! -d "$reference" ]; then
    missing=1
    {
        say "setup-dflash: the target is not there${reference:+: no folder $reference}."
        if [ -f "$pins/fetch.json" ]; then say "  ./setup.sh $track fetches it. Or:"; fi
        say "  Put these files into one folder and set MLXFAST_REFERENCE_DIR to it:"
        list_files "$pins/target.sha256"
    } >&2
fi
if [ -n "$reference" ] && [ "$weights" != "$reference" ] && [ ! -d "$weights" ]; then
    missing=1
    say "setup-dflash: MLXFAST_WEIGHTS_PATH names no folder: $weights" >&2
fi
if [ -z "$drafter" ] || [ ! -d "$drafter" ]; then
    missing=1
    {
        say "setup-dflash: the drafter is not there${drafter:+: no folder $drafter}."
        say "  Put these files into one folder and set MLXFAST_DFLASH_DRAFTER_DIR to it:"
        list_files "$pins/drafter.sha256"
        if [ -n "$source_sha" ]; then
            say "  or, to be converted here, config.json and model.safetensors of $repo"
            say "  at revision $revision"
            say "  (SHA-256 of model.safetensors: $source_sha)"
        fi
    } >&2
fi
[ $missing = 0 ] || exit 1

# Only plain files with one name each, all of them expected.
check_files() { # folder manifest
    local folder=$1 manifest=$2 entry name
    while IFS= read -r -d '' entry; do
        name=${entry#"$folder"/}
        case $name in .mlxfast-fetch | .mlxfast-mutation.lock)
            refuse "$entry: a fetch into this folder is at work or was interrupted: let it end, or run it again" ;;
        esac
        [ ! -L "$entry" ] || refuse "$entry is a symbolic link: put the file itself there"
        [ -f "$entry" ] || refuse "$entry is not a file, and is not expected: remove it"
        [ "$(stat -c %h "$entry")" = 1 ] || refuse "$entry is a hard link: it has other names that could change it"
        case $name in README.md | .mlxfast-reference-cache.lock) continue ;; esac
        if [ -z "$(pinned_bytes "$manifest" "$name")" ]; then
            refuse "$entry is not expected: remove it"
        fi
    done < <(find "$folder" -mindepth 1 -maxdepth 1 -print0 | LC_ALL=C sort -z)
}

# Every pinned file: length first, which costs nothing, then digests.
verify() { # folder manifest [config that may stand in]
    local folder=$1 manifest=$2 other=${3:-} sha bytes name found
    check_files "$folder" "$manifest"
    while read -r sha bytes name; do
        case $sha in '' | \#*) continue ;; esac
        [ -f "$folder/$name" ] || refuse "$folder/$name is missing: $bytes bytes, SHA-256 $sha"
        if [ "$name" = config.json ] && [ -n "$other" ] && cmp -s "$folder/$name" "$other"; then
            continue
        fi
        found=$(stat -c %s "$folder/$name")
        [ "$found" = "$bytes" ] || refuse "$folder/$name has $found bytes, pinned are $bytes"
    done <"$manifest"
    while read -r sha bytes name; do
        case $sha in '' | \#*) continue ;; esac
        if [ "$name" = config.json ] && [ -n "$other" ] && cmp -s "$folder/$name" "$other"; then
            continue
        fi
        found=$(sha256sum <"$folder/$name")
        found=${found%% *}
        [ "$found" = "$sha" ] || refuse "$folder/$name has SHA-256 $found, pinned is $sha"
        say "  ok $bytes $name"
    done <"$manifest"
}

config=
if [ -f "$pins/config.json" ]; then config=$pins/config.json; fi
say "target: $reference"
if [ "$weights" != "$reference" ]; then
    verify "$reference" "$pins/target.sha256"
    say "weights: $weights"
fi
if [ -n "$loaded" ]; then
    verify "$weights" "$pins/target.sha256" "$config"
else
    verify "$weights" "$pins/target.sha256"
fi

if needs_conversion; then
    check_files "$drafter" "$pins/drafter.sha256"
    found="$drafter/model.safetensors has another length than the pinned file"
    [ -n "$source_sha" ] || refuse "$found"
    if [ "$mode" = setup ]; then
        say "drafter: $found: converting to $converted"
        pinned=$(awk '$1 !~ /^#/ && $3 == "model.safetensors" { print $1 }' "$pins/drafter.sha256")
        mkdir -p "$(dirname "$converted")"
        "$build/mlxfast" convert-drafter --source "$drafter" --out "$converted" \
            --source-repo "$repo" --source-revision "$revision" --converted-at "$converted_at" \
            --expect-source-sha256 "$source_sha" --expect-sha256 "$pinned" ||
            refuse "not converted: the drafter of this track is made of $repo at $revision"
        if [ "$drafter" = "$published" ]; then rm -rf "$published" "$published.sha256"; fi
    elif [ ! -d "$converted" ]; then
        refuse "$found, and nothing was converted to $converted yet: run ./setup-dflash.sh --track $track"
    fi
    drafter=$converted
fi
say "drafter: $drafter"
verify "$drafter" "$pins/drafter.sha256"

say "ready: $track"
if [ "$mode" = setup ] && [ -n "$given$alias$loaded${MLXFAST_REFERENCE_DIR:-}" ]; then
    say "  export MLXFAST_WEIGHTS_PATH=$weights"
    say "  export MLXFAST_DFLASH_DRAFTER_DIR=$drafter"
    say "  export MLXFAST_DFLASH_CONTRACT_PATH=$root/$pins/contract.json"
fi
