"""The help page of a command: options in groups, the common ones by `--help` and all of them by `--help-all`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from glassloop.arguments import TrainingArguments
from glassloop.errors import counted
from glassloop.settings import DataSettings

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

EVERY = "glassloop.every_option"
ARGUMENTS = "Arguments"
MOST_NAMES = 30  # characters of the names of an option beside its text; longer names have a line of their own
DATA_SETTINGS, TRAINING_SETTINGS = ([entry.name for entry in fields(kind)] for kind in (DataSettings, TrainingArguments))
DATA, TRAINING, OTHER = "Data", "Training", "Options"
# The groups of options in a help page, and their options, in this order. An unlisted setting is in the group of its class.
GROUPS = {
    DATA: (),
    "Study": ("vary", "strategy", "budget", "fold", "samples", "at_once", "on"),
    "Model": ("model", "new_head", "max_length"),
    TRAINING: ("num_train_epochs", "max_steps", "per_device_train_batch_size", "learning_rate", "seed", "seeds"),
    "Optimizer": (
        *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_epsilon", "optim", "max_grad_norm"),
    ),
    "Evaluation": (
        *("split", "metric", "positive_label"),
        *("eval_strategy", "eval_steps", "eval_on_start", "per_device_eval_batch_size"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        *("early_stopping_patience", "early_stopping_threshold"),
    ),
    "Machine": ("device", "precision", "backend", "processes", "seeds_at_once"),
    "Run folder": (
        *("output_dir", "overwrite_output_dir", "config", "resume", "restart"),
        *("save_strategy", "save_steps", "save_total_limit", "logging_steps"),
        *("report_to", "run_name", "disable_tqdm", "no_report"),
    ),
    OTHER: (),
}
# The settings that `--help` shows. A command's own options are shown too, except for these rare ones. `--help-all` shows all.
COMMON = (
    *("text", "text_pair", "label", "num_train_epochs", "per_device_train_batch_size", "learning_rate", "max_length"),
    *("seed", "eval_strategy", "load_best_model_at_end", "positive_label", "device", "output_dir"),
)
RARE = ("new_head", "restart", "processes", "seeds_at_once", "no_report")


def group_of(name: str) -> str:
    """Return the group of an option in a help page. An unlisted setting is in the group of its class."""
    for group, names in GROUPS.items():
        if name in names:
            return group
    if name in DATA_SETTINGS:
        return DATA
    return TRAINING if name in TRAINING_SETTINGS else OTHER


def place_of(name: str) -> int:
    """Return where an option stands in its group. Options that the group does not list follow in their own order."""
    listed = GROUPS[group_of(name)]
    return listed.index(name) if name in listed else len(listed)


def is_common(name: str) -> bool:
    """Return whether `--help` shows an option. `--help-all` shows all."""
    is_setting = name in (*TRAINING_SETTINGS, *DATA_SETTINGS)
    return name in COMMON if is_setting else name not in RARE


def show_every_option(context: typer.Context, wanted: bool) -> None:
    """Print the help page with all options and exit, if wanted."""
    if wanted:
        context.meta[EVERY] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=show_every_option, is_eager=True, help="Show all options and exit.")
]


class GroupedCommand(TyperCommand):
    """A command whose help page has its options in groups."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and the groups of options, and how many options are not shown."""
        every = bool(ctx.meta.get(EVERY))
        groups: dict[str, list[tuple[str, str]]] = {ARGUMENTS: [], **{group: [] for group in GROUPS}}
        hidden = 0
        for param in sorted(self.get_params(ctx), key=lambda param: place_of(param.name or "")):
            record, name = param.get_help_record(ctx), param.name or ""
            is_argument = param.param_type_name == "argument"
            if record and (is_argument or every or is_common(name)):
                names, text = record[0].split(" / --no-")[0], record[1]
                groups[ARGUMENTS if is_argument else group_of(name)].append((names, text))
            elif record:
                hidden += 1
        width = max(len(names) for rows in groups.values() for names, _ in rows if len(names) <= MOST_NAMES)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(names.ljust(width), text) for names, text in rows], col_max=width)
        formatter.write_paragraph()
        if hidden:
            formatter.write_text(f"{counted(hidden, 'more option', 'more options')}: {ctx.command_path} --help-all")
        elif every:
            formatter.write_text("Options that turn something on have a --no- form that turns it off: --no-eval_on_start.")
