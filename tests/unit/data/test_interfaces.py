"""The types of rows in signatures are free to import."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_types_loads_no_large_library() -> None:
    code = "import sys; import glassloop.data.interfaces; print({'torch', 'datasets', 'pyarrow'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "set()"


# --- The types of models in signatures are free to import.


def test_importing_the_types_loads_no_large_library_of_transformers_types() -> None:
    code = "import sys; import glassloop.data.interfaces; print({'torch', 'transformers'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "set()"
