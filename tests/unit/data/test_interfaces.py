"""The types of rows and models in signatures are free to import."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_types_loads_no_large_library() -> None:
    code = (
        "import sys; import glassloop.data.interfaces; print({'torch', 'datasets', 'pyarrow', 'transformers'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "set()"
