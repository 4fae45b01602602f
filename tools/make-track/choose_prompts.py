#!/usr/bin/python3
"""Chooses the prompts of a track of laguna-nano and writes them as token-id files.

usage: choose_prompts.py [--track ID] [--build DIR] [--candidates N] [BOOK...]

From the held-out last 5 % of each of the track's books of the corpus (MLXFAST_SHARED/corpus), N
passages that begin a paragraph are cut to 512 ids, begin-of-text included. record-correctness-golden
runs the model on each and reports the screen of docs/track.md; of those that meet the hard limits the
passage whose continuation repeats itself least is taken. Run by hand, once: the ids are committed,
and the goldens are made from them by make_serial_track.sh and make_dflash_track.sh.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "models" / "laguna-nano"
SHARED = pathlib.Path(os.environ.get("MLXFAST_SHARED", ROOT.parent / "shared"))
LENGTH = 512
CONTINUATION = 129

# Of each track: the pool's prompts, and others that go to public/. No book serves two tracks.
BOOKS = {
    "laguna-nano-serial-v1": {
        "detective-doyle": "The-Adventures-of-Sherlock-Holmes_1661.txt",
        "economics-smith":
            "An-Inquiry-into-the-Nature-and-Causes-of-the-Wealth-of-Nations_3300.txt",
        "essay-thoreau": "Walden-and-On-The-Duty-Of-Civil-Disobedience_205.txt",
        "novel-austen": "Pride-and-Prejudice_1342.txt",
        "novel-melville": "Moby-Dick--Or-The-Whale_2701.txt",
        "philosophy-plato": "The-Republic_1497.txt",
        "politics-federalist": "The-Federalist-Papers_18.txt",
        "travel-darwin": "The-Voyage-of-the-Beagle_944.txt",
    },
    "laguna-nano-dflash-v1": {
        "adventure-twain": "Adventures-of-Huckleberry-Finn_76.txt",
        "epic-tolstoy": "War-and-Peace_2600.txt",
        "ethics-aurelius": "Meditations_2680.txt",
        "gothic-stoker": "Dracula_345.txt",
        "historical-dickens": "A-Tale-of-Two-Cities_98.txt",
        "novel-dostoyevsky": "The-Brothers-Karamazov_28054.txt",
        "novel-eliot": "Middlemarch_145.txt",
        "politics-hobbes": "Leviathan_3207.txt",
        "public/convict-dickens": "Great-Expectations_1400.txt",
        "public/orphan-dickens": "David-Copperfield_766.txt",
    },
}


def body(text):
    """The book without its licence."""
    start = re.search(r"\*\*\* ?START OF TH.*?\*\*\*", text)
    end = re.search(r"\*\*\* ?END OF TH.*?\*\*\*", text)
    return text[start.end() if start else 0:end.start() if end else len(text)].strip()


def passages(text, count):
    """Evenly spread paragraph beginnings in the last 5 %, each with text enough for 512 ids."""
    text = text.replace("\r\n", "\n")
    held_out = text[int(len(text) * 0.955):]
    starts = [m.end() for m in re.finditer(r"\n+(?=[A-Z\"“])", held_out)]
    starts = [s for s in starts if s + 3500 < len(held_out)]
    step = max(1, len(starts) // count)
    return [held_out[s:s + 3500] for s in starts[::step][:count]]


def run(arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{arguments[0]}: {result.stderr.strip()}")
    return result.stdout


def token_ids(build, text, folder):
    path = folder / "passage.txt"
    path.write_text(text)
    out = run([build / "bench-worker", "generate", "--weights", WEIGHTS, "--prompt-file", path,
               "-n", "1", "--json"])
    return json.loads(out)["prompt_ids"][:LENGTH]


def meets_hard_limits(screen):
    return (screen["distinct_token_fraction"] >= 0.40 and screen["near_tie_row_count"] >= 1
            and screen["minimum_top2_gap"] <= 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--track", choices=sorted(BOOKS), default="laguna-nano-serial-v1")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("books", nargs="*")
    options = parser.parse_args()
    track, books = ROOT / "tracks" / options.track, BOOKS[options.track]
    for name in options.books or sorted(books):
        text = body((SHARED / "corpus" / books[name]).read_text(encoding="utf-8-sig"))
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            cases = []
            for i, passage in enumerate(passages(text, options.candidates)):
                ids = token_ids(options.build, passage, folder)
                if len(ids) == LENGTH:
                    path = folder / f"{i}.json"
                    path.write_text(json.dumps(ids))
                    cases += ["--prompt-tokens", path, "--case-name", str(i)]
            report = folder / "screen.json"
            run([options.build / "record-correctness-golden", "--worker-bin",
                 options.build / "bench-worker", "--weights", WEIGHTS, "--contract",
                 track / "contract.json", "--out", folder / "golden.json", "--steps",
                 CONTINUATION, "--screen-report", report, "--quiet", *cases])
            screens = json.loads(report.read_text())
            rate = {s["name"]: s["ngram"]["longest_match_most_recent_hit_rate"] for s in screens}
            good = [s for s in screens if meets_hard_limits(s)]
            if not good:
                sys.exit(f"{name}: none of {len(screens)} passages meets the limits")
            best = min(good, key=lambda s: (rate[s["name"]], int(s["name"])))
            ids = json.loads((folder / f"{best['name']}.json").read_text())
        lines = [" ".join(map(str, ids[i:i + 16])) for i in range(0, LENGTH, 16)]
        out = track / "prompts" / f"{name}.txt"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n")
        print(f"{name}: passage {best['name']} of {len(screens)} ({len(good)} within the limits), "
              f"distinct {best['distinct_token_fraction']:.3f}, near-ties "
              f"{best['near_tie_row_count']}, minimum gap {best['minimum_top2_gap']:.4f}, "
              f"repeats {rate[best['name']]:.3f} (median {sorted(rate.values())[len(rate) // 2]:.3f})",
              flush=True)


if __name__ == "__main__":
    main()
