"""One fuzz case: commands run in a forked child under limits, and what is wrong with how they ended."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

CPU_SECONDS, WALL_SECONDS = 20, 90  # other jobs may share the machine; a hang that waits uses no CPU
LONGEST_LINE = 2000
NOBODY = 65534
MOST_BYTES = 2_000_000_000
REFUSED, EQUAL, REPORTED, ACCEPTED, FAILED = "refused", "equal", "reported", "accepted", "failed"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # and what turns lines around
AREAS = {2: ["settings"], 3: ["data"], 4: ["model", "resume"], 5: ["diverged"], 6: ["resources"], 7: ["locked"]}


class Finding(Exception):  # noqa: N818 - what the fuzzer looks for, not an error of its own
    """Something that must not happen."""


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Case:
    """One case in its own folder: its random numbers, what was done to the files, and what the commands said."""

    name: str
    folder: Path
    chance: random.Random
    done: list[str] = field(default_factory=list)
    compared: bool = False
    codes: list[int] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.done.append(what)

    def run(self, *arguments: object) -> Ran:
        """Run a command in this process; raise a `Finding` for a traceback, a wrong exit code, or another shape of message."""
        words = [str(argument) for argument in arguments]
        ran = command(words)
        self.codes.append(ran.code)
        shown = f"glassloop {' '.join(words)[:300]}: exit {ran.code}"
        if "Traceback (most recent call last)" in ran.err or ran.code not in (0, *AREAS):
            raise Finding(f"traceback: {shown}\n{ran.err[-3000:]}")
        if ran.code and not (refusal(ran) or (ran.code == 2 and "Usage:" in ran.err)):
            raise Finding(f"message: {shown}, without its two lines\n{ran.err[-1500:]}")
        if ran.code and max(map(len, ran.err.splitlines())) > LONGEST_LINE:
            raise Finding(
                f"message: {shown}, with a line of {max(map(len, ran.err.splitlines())):,} characters\n{ran.err[:600]}"
            )
        if ran.code == 6 and "not enough memory" in ran.err:
            raise Finding(f"memory: {shown}\n{ran.err[-1500:]}")
        if found := CONTROL.search(ran.out + ran.err):
            raise Finding(f"control: {shown}: {found[0]!r} reaches the terminal\n{ran.err[-500:]}{ran.out[-500:]}")
        self.reports += [f"exit {ran.code}: {ran.err.splitlines()[-2]}"] if ran.code else []
        return ran

    def lock_away(self, folder: Path) -> None:
        """Make something in a folder unreadable, and become a user to whom that matters."""
        place = self.chance.choice(
            sorted(path for path in [folder, *folder.rglob("*")] if path.exists() and not path.is_symlink()) or [self.folder]
        )
        if os.geteuid() == 0:
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        place.chmod(self.chance.choice([0, 0, 0o444, 0o111]))
        self.note(f"{place.name}: not readable")
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    def equal(self, what: str, found: object, expected: object) -> None:
        self.compared = True
        if found != expected:
            raise Finding(f"silent: {what} is {found!r:.600}, not {expected!r:.600}")


def refusal(ran: Ran) -> bool:
    """Whether the last two lines are an error with its remedy, of the area that belongs to the exit code."""
    lines = ran.err.rstrip("\n").split("\n")
    return len(lines) > 1 and lines[-2].partition(": ")[0] in AREAS[ran.code] and lines[-1].startswith("try:  ")


def command(arguments: list[str]) -> Ran:
    """The command in this process, its streams like those of a pipe in UTF-8."""
    from glassloop.cli import main as cli

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors, newline="\n") for errors in ("strict", "backslashreplace")]
    kept = sys.stdout, sys.stderr, sys.argv
    sys.stdout, sys.stderr = streams
    sys.argv = ["glassloop", *arguments]
    code = 0
    try:
        cli.main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        sys.stdout, sys.stderr, sys.argv = kept
    said = []
    for stream in streams:
        stream.flush()
        said.append(stream.buffer.getvalue().decode("utf-8", "backslashreplace"))  # type: ignore[attr-defined]
    return Ran(code, *said)


@dataclass(frozen=True)
class Verdict:
    """How a case ended, and how it came to that."""

    outcome: str
    detail: str = ""
    done: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def signature(self) -> str:
        """What failures with one cause have in common: the kind, and the last line of our own in the traceback."""
        ours = re.findall(r"glassloop/([\w/]+\.py)\", line (\d+)", self.detail)
        last = next((line for line in reversed(self.detail.strip().splitlines()) if line.strip()), "")
        place = f" {ours[-1][0]}:{ours[-1][1]}" if ours else ""
        return f"{self.detail.split(':')[0]}{place} {re.sub(r'/[^ ]*/|[0-9]+', '…', last)[:110]}"


def judged(case: Case, work: Callable[[Case], None]) -> Verdict:
    """Do the work of a case in this process."""
    began = time.monotonic()
    try:
        work(case)
        outcome = REFUSED if any(case.codes) else REPORTED if case.reports else EQUAL if case.compared else ACCEPTED
        detail = "\n".join(case.reports)
    except Finding as found:
        outcome, detail = FAILED, str(found)
    except BaseException:
        outcome, detail = FAILED, f"fuzzer: {traceback.format_exc()[-3000:]}"
    return Verdict(outcome, detail, case.done, time.monotonic() - began)


def in_child(case: Case, work: Callable[[Case], None]) -> Verdict:
    """Do the work of a case in a forked child with limits on time and memory; what breaks them is a finding."""
    case.folder.mkdir(parents=True)
    stacks = case.folder.with_suffix(".stacks")
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            limited(stacks, case.folder)
            with os.fdopen(writing, "w") as answer_file:
                json.dump(asdict(judged(case, work)), answer_file)
        finally:
            os._exit(0)
    os.close(writing)
    answer, in_time = answer_of(child, reading)
    _, status, usage = os.wait4(child, 0)
    stack = stacks.read_text(errors="replace")[:3000] if stacks.exists() else ""
    stacks.unlink(missing_ok=True)
    shutil.rmtree(case.folder, onerror=writable_again)
    verdict = Verdict(**json.loads(answer)) if answer.endswith(b"}") else Verdict(FAILED, "fuzzer: no answer")
    if not in_time:
        return Verdict(FAILED, f"hang: not ended after {WALL_SECONDS} s, or {CPU_SECONDS} s of CPU time\n{stack}", case.done)
    if os.WIFSIGNALED(status):
        return Verdict(FAILED, f"signal: ended by {signal.Signals(os.WTERMSIG(status)).name}\n{stack}", case.done)
    if usage.ru_maxrss * 1024 > MOST_BYTES:
        return Verdict(FAILED, f"memory: {usage.ru_maxrss * 1024:,} bytes at most", verdict.done)
    return verdict


def answer_of(child: int, reading: int) -> tuple[bytes, bool]:
    """What a child answers; False, and the child ended, where it takes too long."""
    until, answer = time.monotonic() + WALL_SECONDS, b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], min(left, 1.0))[0]:
            if cpu_seconds(child) > CPU_SECONDS:
                break
            continue
        if not (part := os.read(reading, 1 << 16)):
            os.close(reading)
            return answer, True
        answer += part
    os.kill(child, signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    return answer, False


def cpu_seconds(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def limited(stacks: Path, folder: Path) -> None:
    """In the child: no terminal, its own folder, limits, and its stack on SIGUSR1 or a crash."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    opened = stacks.open("w")
    faulthandler.enable(opened)
    faulthandler.register(signal.SIGUSR1, file=opened)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * MOST_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)


def writable_again(function: Callable[..., object], path: str, _: object) -> None:
    """Remove what a case has made unwritable."""
    place = Path(path)
    place.parent.chmod(0o700)
    if place.is_symlink() or not place.is_dir():
        place.unlink()
    else:
        place.chmod(0o700)
        shutil.rmtree(place)
