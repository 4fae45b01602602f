"""The screen of the pool's prompts as a page, from the recorder's --screen-report files.

usage: screen_table.py [--script NAME] REPORT...
"""

import json
import pathlib
import sys

HEAD = """# Screen of the pool's prompts

Written by `tools/make-track/{script}`; do not edit. Rows are the {rows:,} greedy steps after
each prompt; repeats are counted over the first 129 of them (`docs/track.md` says how).

| prompt | distinct ids (>= 0.40) | rows with top-2 gap < 0.25 (>= 1) | minimum gap (<= 1.0) | seed row's gap | repeats (<= 0.03 wanted) |
|---|---:|---:|---:|---:|---:|"""


def main():
    arguments, script = sys.argv[1:], "make_serial_track.sh"
    if arguments[0] == "--script":
        script, arguments = arguments[1], arguments[2:]
    rows, steps = {}, 0
    for path in arguments:
        for s in json.loads(pathlib.Path(path).read_text()):
            n, steps = s["ngram"], s["row_count"]
            rows[s["name"]] = (
                f"| {s['name']} | {s['distinct_token_fraction']:.3f} | "
                f"{s['near_tie_row_count']} of {s['row_count']} | {s['minimum_top2_gap']:.4f} | {s['seed_row_top2_gap']:.4f} | "
                f"{n['longest_match_most_recent_hit_count']} of {n['continuation_token_count']} = "
                f"{n['longest_match_most_recent_hit_rate']:.3f} |")
    print(HEAD.format(script=script, rows=steps))
    for name in sorted(rows):
        print(rows[name])


if __name__ == "__main__":
    main()
