#!/usr/bin/python3
"""Work in the wrong phase: after each answer, before it is asked again, the engine works on the next round
(here: it waits for 5 ms, the work's stand-in). A window that counts requests only would not see it."""
import time

import toy_engine

PAUSE = 0.005


class Cheat(toy_engine.Engine):
    worked = False


def send_and_work(reply, send=toy_engine.send):
    send(reply)
    if "tokens" in reply:
        time.sleep(PAUSE)


toy_engine.send = send_and_work
if __name__ == "__main__":
    toy_engine.serve(Cheat)
