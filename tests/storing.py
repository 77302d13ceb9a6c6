"""Fill a store without a stage: requests, answers, and a look at the rows."""

import sqlite3
import threading

from judgebench.engine import Response
from judgebench.request import Connection, Descriptor, Request, Subject, prompt_input
from judgebench.store import layout

M = Descriptor("openai", "m", {"temperature": 0.0})


def ask(text="Hi", instruction="1", descriptor=M, sample=0, **subject):
    names = {"benchmark": "b", "instruction_id": instruction, "turn": 0, "model_a": "x", **subject}
    return Request(descriptor, Connection(), prompt_input(text), Subject(**names), sample)


def put(root, *requests, output="yes", **facts):
    done = threading.Event()
    stored = []

    def on_commit(answer):
        stored.append(answer)
        done.set()

    root.put(Response(requests[0], output, **facts), requests, on_commit)
    root.flush()
    assert done.wait(5)
    return stored[0]


def database(root, descriptor=M):
    return layout.database(root.root, root.role, descriptor)


def rows(root, sql, descriptor=M):
    db = sqlite3.connect(database(root, descriptor))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
