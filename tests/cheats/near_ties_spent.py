#!/usr/bin/python3
"""Near ties spent: as lenient_acceptance.py, but only where the second choice is within the near-tie rule."""
import lenient_acceptance
from toy_engine import serve


class Cheat(lenient_acceptance.Cheat):
    reach = 0.05


serve(Cheat)
