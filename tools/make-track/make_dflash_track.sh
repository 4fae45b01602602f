#!/usr/bin/env bash
# Makes the goldens and the contract of tracks/laguna-nano-dflash-v1 from its prompts, the weights in
# models/, the recorder and the reference. The same inputs give the same bytes, on every machine; the
# normalisers (noop.json) are measurements: measure_noop.py makes them, this script copies them.
# usage: make_dflash_track.sh [OUT]      OUT: the track's folder to write (default: in place)
#        BUILD=DIR                       where the programs are (default: build)
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
track=$here/tracks/laguna-nano-dflash-v1
out=${1:-$track}
build=${BUILD:-$here/build}
weights=$here/models/laguna-nano
drafter=$here/models/laguna-nano-dflash
prompts=$track/prompts
mkdir -p "$out/pool"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fill() { /usr/bin/python3 "$here/tools/make-track/fill_contract.py" "$@"; }

# The pinned model is these files and no others (the card beside them may be edited).
revision=$(cd "$weights" && cat config.json model-*.safetensors model.safetensors.index.json \
    tokenizer.json | sha256sum | cut -c1-40)
fill "$track/contract.json" "$work/contract.json" "$revision"
tokens=$(/usr/bin/python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["block_decode"]["decode_tokens"])' "$work/contract.json")

record() { # OUT SCREEN FLAGS...
    local to=$1 screen=$2
    shift 2
    "$build/record-correctness-golden" --worker-bin "$build/bench-worker" --weights "$weights" \
        --contract "$work/contract.json" --track laguna-nano-dflash-v1 --out "$to" \
        --screen-report "$screen" --quiet "$@"
}

# The pool: the reference decodes each prompt greedily and tells of every row.
for prompt in "$prompts"/*.txt; do
    name=$(basename "$prompt" .txt)
    { printf '{"seed_tokens":['; tr -s ' \n' ',' <"$prompt" | sed 's/,$//'; printf ']}\n'; } \
        >"$work/$name.emitted.json"
    "$build/benchd" dflash-reference --engine "$build/bench-worker" --weights "$weights" \
        --drafter "$drafter" --contract "$work/contract.json" --emitted "$work/$name.emitted.json" \
        --generate "$tokens" --output "$out/pool/$name.golden.json" --quiet
    record "$work/$name.golden.json" "$work/$name.screen.json" \
        --prompt-tokens "$prompt" --case-name "$name" --steps "$tokens"
done

# The public golden, of prompts that are not in the pool: the tripwire of local runs.
free=() anchors=() behaviors=()
for prompt in "$prompts"/public/*.txt; do
    name=$(basename "$prompt" .txt)
    free+=(--free-run "free-$name=$prompt")
    for length in 128 256 384; do
        tr -s ' \n' '\n' <"$prompt" | head -n $length >"$work/$name.$length.txt"
        anchors+=(--anchor "anchor-$name-$length=$work/$name.$length.txt")
    done
    behaviors+=(--behavior "continues-$name=$work/$name.128.txt")
done
record "$out/public.golden.json" "$work/public.json" \
    --prompt-tokens "$prompts/public/convict-dickens.txt" --case-name convict-dickens \
    --prompt-tokens "$prompts/public/orphan-dickens.txt" --case-name orphan-dickens --steps 513 \
    "${anchors[@]}" "${free[@]}" --free-run-steps 128 "${behaviors[@]}" --behavior-steps 24 \
    --benchmark-free-run --benchmark-steps 512

noop=()
[ -f "$track/noop.json" ] && noop=(--noop "$track/noop.json")
fill "$work/contract.json" "$out/contract.json" "$revision" "$out/pool" "${noop[@]}"
/usr/bin/python3 "$here/tools/make-track/screen_table.py" --script make_dflash_track.sh \
    "$work"/*.screen.json >"$out/SCREEN.md"
"$build/benchd" explain-contract --markdown "$out/contract.json" >"$out/CONTRACT.md"
