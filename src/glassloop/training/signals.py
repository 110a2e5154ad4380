"""Signals that ask a run to stop: it acts on the first one between two steps; a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from glassloop.training.state import State

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE = signal.SIGUSR1  # what `pause.PauseAt` asks for in place of a signal


class Paused(SystemExit):
    """A run was interrupted at the step that was asked for. Its checkpoint is written."""


@contextmanager
def handled_by(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with each signal that asks to stop while the block runs. Only the main thread gets signals."""

    def handle(number: int, frame: FrameType | None) -> None:
        act(number)
        if number == signal.SIGHUP:
            drop_lost_terminal()

    in_main_thread = threading.current_thread() is threading.main_thread()
    ignored = signal.SIGHUP if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else None  # on purpose, as under nohup
    wanted = [number for number in STOPPING if in_main_thread and number != ignored]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def listening(state: State) -> Iterator[None]:
    """Store the first signal in `state.asked_to_stop` while the block runs; let a second one end the process at once."""

    def ask(number: int) -> None:
        if state.asked_to_stop:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        state.asked_to_stop = number

    with handled_by(ask):
        yield


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list of the signals that arrive while the block runs, for a caller that passes them on to other processes."""
    got: list[int] = []
    with handled_by(got.append):
        yield got


def drop_lost_terminal() -> None:
    """Redirect standard output and error to the null device if their terminal was closed: writing to it would end the run."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def leave(number: int) -> NoReturn:
    """End the process as the signal asks, with exit status 128 + number. A pause only raises `Paused`."""
    if number == PAUSE:
        raise Paused
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def leave_on_signal() -> None:
    """Exit in an orderly way on SIGTERM and SIGHUP, so that no partly written files stay. A training saves first instead."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: sys.exit(128 + number))
