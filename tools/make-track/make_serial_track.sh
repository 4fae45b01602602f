#!/usr/bin/env bash
# Makes the goldens and the contract of tracks/laguna-nano-serial-v1 from its prompts, the weights in
# models/laguna-nano and our own recorder. The same inputs give the same bytes, on every machine.
# usage: make_serial_track.sh [OUT]      OUT: the track's folder to write (default: in place)
#        BUILD=DIR                       where the programs are (default: build)
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
track=$here/tracks/laguna-nano-serial-v1
out=${1:-$track}
build=${BUILD:-$here/build}
weights=$here/models/laguna-nano
prompts=$track/prompts
mkdir -p "$out/pool"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The pinned model is these files and no others (the card beside them may be edited).
revision=$(cd "$weights" && cat config.json model-*.safetensors model.safetensors.index.json \
    tokenizer.json | sha256sum | cut -c1-40)
/usr/bin/python3 "$here/tools/make-track/fill_contract.py" "$track/contract.json" \
    "$work/contract.json" "$revision"

record() { # OUT SCREEN FLAGS...
    local to=$1 screen=$2
    shift 2
    "$build/record-correctness-golden" --worker-bin "$build/bench-worker" --weights "$weights" \
        --contract "$work/contract.json" --track laguna-nano-serial-v1 --out "$to" \
        --screen-report "$screen" --quiet "$@"
}

# The pool: one golden for each prompt. Its decode is timed behind the prompt itself, its prefill on
# the prompt before it in the list: an engine that knew the seed from the prefill could decode ahead.
all=("$prompts"/*.txt)
before=${all[-1]}
for prompt in "${all[@]}"; do
    name=$(basename "$prompt" .txt)
    record "$out/pool/$name.golden.json" "$work/$name.screen.json" \
        --prompt-tokens "$prompt" --case-name "$name" --steps 1024 \
        --benchmark-free-run --benchmark-steps 1023 \
        --benchmark-prefill-prompt "$before" --benchmark-decode-prompt "$prompt"
    before=$prompt
done

# The public golden: every gate, and an oracle as long as local-submit's window.
anchors=()
for prompt in "$prompts"/*.txt; do
    name=$(basename "$prompt" .txt)
    # A context that ends inside the passage, where the text has not been quoted to its end.
    tr -s ' \n' '\n' <"$prompt" | head -n 384 >"$work/$name.anchor.txt"
    anchors+=(--anchor "anchor-$name=$work/$name.anchor.txt")
done
behaviors=()
for name in detective-doyle novel-melville philosophy-plato; do
    tr -s ' \n' '\n' <"$prompts/$name.txt" | head -n 96 >"$work/$name.behavior.txt"
    behaviors+=(--behavior "continues-$name=$work/$name.behavior.txt")
done
record "$out/public.golden.json" "$work/public.screen.json" \
    --prompt-tokens "$prompts/novel-austen.txt" --case-name novel-austen \
    --prompt-tokens "$prompts/travel-darwin.txt" --case-name travel-darwin --steps 1024 \
    "${anchors[@]}" \
    --free-run "free-essay-thoreau=$prompts/essay-thoreau.txt" \
    --free-run "free-economics-smith=$prompts/economics-smith.txt" --free-run-steps 128 \
    "${behaviors[@]}" --behavior-steps 24 \
    --benchmark-free-run --benchmark-steps 1024 \
    --benchmark-prefill-prompt "$prompts/novel-austen.txt" \
    --benchmark-decode-prompt "$prompts/travel-darwin.txt"

/usr/bin/python3 "$here/tools/make-track/fill_contract.py" "$track/contract.json" \
    "$out/contract.json" "$revision" "$out/pool"
/usr/bin/python3 "$here/tools/make-track/screen_table.py" "$work"/*.screen.json >"$out/SCREEN.md"
"$build/benchd" explain-contract --markdown "$out/contract.json" >"$out/CONTRACT.md"
