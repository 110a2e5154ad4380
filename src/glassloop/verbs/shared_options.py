"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.options import choices_of, completed_runs

DATA_HELP = "Data to {}: a file, a folder, glue/mrpc, quickstart, or a hub name."
MODEL_HELP = "Model: a folder, a run folder, a hub name, or quickstart."
RUN_HELP = "Run folder, folder of a model or an export, or folder of several seeds."
Run = Annotated[str, typer.Argument(help=RUN_HELP, autocompletion=completed_runs)]
Device = Annotated[str, typer.Option("--device", help="Device: cuda, mps, cpu, or auto.", autocompletion=choices_of("device"))]
Precision = Annotated[
    str,
    typer.Option("--precision", help="Precision of predictions: auto, fp32, bf16, fp16; int8 on a CPU, compared with the run."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON. All other output goes to standard error.")]
