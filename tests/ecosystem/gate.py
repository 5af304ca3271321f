# SPDX-License-Identifier: MIT
# needs: torch
# modes: relay
# timeout: 300
"""The gate around a state dict: readers and the trainer that changes it, in threads."""

import random
import threading

import torch

import eco
from cairnfs import CairnStager, StateDictGate
from staging import raises

LONG = 60       # never waited for in a run that passes


class Thread(threading.Thread):
    """A thread whose error is its starter's, at the join."""

    def __init__(self, body, *args):
        super().__init__(target=body, args=args, daemon=True)
        self.error = None
        self.start()

    def run(self):
        try:
            super().run()
        except BaseException as e:
            self.error = e

    def end(self):
        self.join(LONG)
        assert not self.is_alive(), "a thread still waits"
        if self.error:
            raise self.error


def simple():
    gate = StateDictGate()
    assert gate.is_state_dict_read_allowed
    for _ in range(2):
        gate.disallow_state_dict_read()     # a second call has no effect
        assert not gate.is_state_dict_read_allowed
    for _ in range(2):
        gate.allow_state_dict_read()
        assert gate.is_state_dict_read_allowed
    with gate.reading(), gate.reading():
        # Its own lock would not end.
        raises(RuntimeError, gate.disallow_state_dict_read)
    gate.disallow_state_dict_read()
    raises(RuntimeError, gate.acquire_read)
    gate.allow_state_dict_read()
    with gate.reading():
        pass


def readers_wait():
    gate, inside = StateDictGate(), threading.Event()
    gate.disallow_state_dict_read()

    def read():
        with gate.reading():
            inside.set()

    readers = [Thread(read) for _ in range(4)]
    assert not inside.wait(0.1), "a reader got in while reading was not allowed"
    gate.allow_state_dict_read()
    for t in readers:
        t.end()


def closer_waits():
    gate, inside, go, closed = StateDictGate(), *(threading.Event() for _ in range(3))

    def read():
        with gate.reading():
            inside.set()
            assert go.wait(LONG)
            with gate.reading():        # again, while another waits for it to leave
                assert not closed.is_set()

    def close():
        gate.disallow_state_dict_read()
        closed.set()

    reader = Thread(read)
    assert inside.wait(LONG)
    closers = [Thread(close), Thread(close)]
    while gate.is_state_dict_read_allowed:
        pass
    # No new reader gets in before the one who waits to close: it would never get its turn.
    late = threading.Event()

    def read_late():
        with gate.reading():
            late.set()

    waiting = Thread(read_late)
    assert not late.wait(0.1) and not closed.is_set()
    go.set()
    reader.end()
    for t in closers:
        t.end()
    assert closed.is_set() and not late.is_set()
    gate.allow_state_dict_read()
    waiting.end()


def timeouts():
    gate = StateDictGate(timeout=0.01)
    gate.disallow_state_dict_read()
    Thread(lambda: raises(TimeoutError, gate.acquire_read)).end()
    gate.allow_state_dict_read()
    with gate.reading():
        Thread(lambda: raises(TimeoutError, gate.disallow_state_dict_read)).end()
        # Who gave up has changed nothing.
        assert gate.is_state_dict_read_allowed
        Thread(lambda: gate.acquire_read(timeout=LONG) or gate.release_read()).end()
    Thread(gate.disallow_state_dict_read).end()
    assert not gate.is_state_dict_read_allowed
    gate.allow_state_dict_read()            # by another thread than closed it


def errors():
    gate = StateDictGate()

    def fail():
        with gate.reading():
            raise KeyError

    raises(KeyError, fail)
    gate.disallow_state_dict_read()         # nobody is inside any more
    gate.allow_state_dict_read()


def storm(top):
    """One trainer, readers and stagers: nobody ever sees half a step."""
    state = {f"w{i}": torch.zeros(2000) for i in range(5)}
    stager = CairnStager(top)
    stop = threading.Event()
    seen = set()

    def one_step(tensors):
        found = {v.item() for t in tensors for v in (t.min(), t.max())}
        assert len(found) == 1, found
        seen.add(found.pop())

    def read(seed):
        chance = random.Random(seed)
        while not stop.is_set():
            with stager.reading():
                one_step(state.values())
            stop.wait(chance.random() / 1000)

    def stage():
        while not stop.is_set():
            one_step(stager.stage(state).values())
            stop.wait(0.001)

    threads = [Thread(read, i) for i in range(3)] + [Thread(stage)]
    step = 0
    while step < 100 or len(seen) < 5:
        step += 1
        stager.disallow_state_dict_read()
        for t in state.values():
            t.fill_(step)
        stager.allow_state_dict_read()
        stop.wait(0.001)
    stop.set()
    for t in threads:
        t.end()
    stager.close()


def save(top):
    for row in (simple, readers_wait, closer_waits, timeouts, errors):
        row()
    storm(top)
    with CairnStager(top) as stager:
        stager.save({"x": torch.ones(3)}, f"{top}/x.pt")


def check(top):
    eco.same(torch.load(f"{top}/x.pt")["x"], torch.ones(3))


if __name__ == "__main__":
    eco.main(save, check)
