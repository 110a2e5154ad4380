"""`glassloop ui` as a process of its own, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from commands import environment


class LiveServer:
    """A server on a free port that shows the runs of a folder. `address` ends with its token and a slash."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glassloop", "ui", str(folder), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def memory(self) -> int:
        """Return the memory of the process in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def open_files(self) -> list[str]:
        """Return the files that the process has open."""
        found = []
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except OSError:  # closed meanwhile
                continue
        return found

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C, and return the exit status and what was printed on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.said = self.process.communicate(timeout=30)[1]
        return self.process.returncode, self.said
