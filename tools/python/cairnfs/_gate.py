# SPDX-License-Identifier: MIT
"""Access to a state dict: many readers, or the trainer that changes it."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import Dict, Iterator, Optional


class StateDictGate:
    """A read/write gate around a state dict.

    Readers (staging, a transport that serves a peer) hold `reading()`. The trainer calls
    disallow_state_dict_read() before the optimizer's step, which waits for active readers and
    admits no new one, and allow_state_dict_read() after it. Both may be called again
    without effect, by any thread; the gate is open at first. A reader may enter again while inside.

    timeout: the seconds any wait may take before TimeoutError; None: for ever.
    """

    def __init__(self, timeout: Optional[float] = None) -> None:
        self.timeout = timeout
        self._changed = threading.Condition()
        self._readers: Dict[int, int] = {}      # thread: how deep
        self._tickets = itertools.count(-1, -1)     # no thread's
        self._closed = False                    # no new reader
        self._closer: Optional[int] = None

    @property
    def is_state_dict_read_allowed(self) -> bool:
        """Would a reader be admitted now?"""
        with self._changed:
            return not self._closed

    def _wait(self, ready: object, timeout: Optional[float], what: str) -> None:
        """Under the lock. ready is called again after each change."""
        assert callable(ready)
        limit = self.timeout if timeout is None else timeout
        end = None if limit is None else time.monotonic() + limit
        while not ready():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{what} after {limit} s")
            self._changed.wait(left)

    def acquire_read(self, timeout: Optional[float] = None) -> None:
        """Enter as a reader; waits while reading is not allowed.

        RuntimeError: this thread disallowed reading itself and would wait for ever.
        """
        me = threading.get_ident()
        with self._changed:
            if me in self._readers:
                # Inside already: waiting for a thread that waits for this one would deadlock.
                self._readers[me] += 1
                return
            if self._closed and self._closer == me:
                raise RuntimeError("this thread called disallow_state_dict_read(): it must call "
                                   "allow_state_dict_read() before it reads")
            self._wait(lambda: not self._closed, timeout, "reading is still not allowed")
            self._readers[me] = 1

    def ticket(self) -> Optional[int]:
        """An entry that belongs to no thread, for work that another thread will do: release_read()
        ends it. None: reading is not allowed now. Never waits."""
        with self._changed:
            if self._closed:
                return None
            ticket = next(self._tickets)
            self._readers[ticket] = 1
            return ticket

    def release_read(self, thread: Optional[int] = None) -> None:
        """Leave. thread: the one that entered, if another one ends the entry, or a ticket."""
        me = threading.get_ident() if thread is None else thread
        with self._changed:
            depth = self._readers[me] - 1
            if depth:
                self._readers[me] = depth
            else:
                del self._readers[me]
                self._changed.notify_all()

    @contextmanager
    def reading(self, timeout: Optional[float] = None) -> Iterator[None]:
        """`with gate.reading():` - the state dict does not change inside."""
        me = threading.get_ident()
        self.acquire_read(timeout)
        try:
            yield
        finally:
            self.release_read(me)

    def disallow_state_dict_read(self, timeout: Optional[float] = None) -> None:
        """Before the state is changed: returns when no reader is active; new ones are not admitted.

        TimeoutError: readers did not leave; reading is allowed as before.
        RuntimeError: this thread is a reader itself.
        """
        me = threading.get_ident()
        with self._changed:
            if me in self._readers:
                raise RuntimeError("disallow_state_dict_read() inside reading()")
            while self._closed:
                # Disallowed already, perhaps by a thread that still waits, and may time out.
                self._wait(lambda: not (self._closed and self._readers), timeout,
                           "readers are still inside")
                if self._closed:
                    return
            self._closed, self._closer = True, me
            try:
                self._wait(lambda: not self._readers, timeout, "readers are still inside")
            except BaseException:
                self._closed, self._closer = False, None
                self._changed.notify_all()
                raise

    def allow_state_dict_read(self) -> None:
        """After the change: readers are admitted again."""
        with self._changed:
            self._closed, self._closer = False, None
            self._changed.notify_all()
