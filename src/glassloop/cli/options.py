"""Command-line options made from settings, options that commands share, the help page, and help with wrong options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from glassloop.base.errors import SettingsError, closest, counted, listed, visible
from glassloop.base.output import say
from glassloop.runs.record import is_run, is_seeds_folder, is_study
from glassloop.settings.defaults import CHOSEN_SETTINGS
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.settings.study import STRATEGIES, StudySettings
from glassloop.settings.training import AUTO, CHOICES, TASKS, DataSettings, TrainingArguments
from glassloop.settings.transformers_names import COMPILE, LOADER, REFUSED, SETTINGS, TRACKERS, UNNEEDED

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter, Parameter

EVERY = "glassloop.every_option"
MOST_NAMES = 30  # characters of the names of an option beside its text; longer names have a line of their own
DATA_SETTINGS = [entry.name for entry in fields(DataSettings)]
TRAINING_SETTINGS = [entry.name for entry in fields(TrainingArguments)]
ARGUMENTS, DATA, TRAINING, OTHER = "Arguments", "Data", "Training", "Options"
# The groups of options in a help page, and their options, in this order. An unlisted setting is in the group of its class.
GROUPS = {
    DATA: (),
    "Study": ("vary", "strategy", "budget", "fold", "samples", "on"),
    "Model": ("model", "new_head", "max_length"),
    TRAINING: (
        *("method", "pooling", "pair_form", "adapter", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
        *("learning_rate", "seed", "seeds", "at_once"),
    ),
    "Optimizer": (
        *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_epsilon", "optim", "max_grad_norm"),
    ),
    "Evaluation": (
        *("split", "metric", "positive_label", "baselines"),
        *("eval_strategy", "eval_steps", "eval_on_start", "per_device_eval_batch_size"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        *("early_stopping_patience", "early_stopping_threshold"),
    ),
    "Machine": ("device", "precision", "backend", "processes"),
    "Run folder": (
        *("output_dir", "overwrite_output_dir", "config", "resume", "restart"),
        *("save_strategy", "save_steps", "save_total_limit", "logging_steps"),
        *("report_to", "run_name", "disable_tqdm", "no_report", "timing"),
    ),
    OTHER: (),
}
# The settings that `--help` shows. A command's own options are shown too, except for these rare ones. `--help-all` shows all.
COMMON = (
    *("text", "text_pair", "label", "method", "num_train_epochs", "per_device_train_batch_size", "learning_rate"),
    *("max_length", "baselines"),
    *("seed", "eval_strategy", "load_best_model_at_end", "positive_label", "device", "output_dir"),
)
RARE = ("new_head", "restart", "processes", "at_once", "no_report", "timing")


# Options that had another name in the last release, by command.
FORMER_OPTIONS = {
    "train": {"seeds_at_once": "at_once"},
    "calibrate": {"recall": "min_recall", "precision": "min_precision"},
}


def group_of(name: str) -> str:
    unlisted = DATA if name in DATA_SETTINGS else TRAINING if name in TRAINING_SETTINGS else OTHER
    return next((group for group, names in GROUPS.items() if name in names), unlisted)


def is_common(name: str) -> bool:
    """Return whether `--help` shows an option. `--help-all` shows all."""
    return name in COMMON if name in (*TRAINING_SETTINGS, *DATA_SETTINGS) else name not in RARE


def show_every_option(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[EVERY] = True
        typer.echo(context.get_help())
        raise typer.Exit


def with_present_name(argument: str, former: Mapping[str, str]) -> str:
    """Return an argument with the present name of an option that was renamed, and report it."""
    name, equals, value = argument.partition("=")
    present = former.get(underscored(name)) if name.startswith("--") else None
    if present is None:
        return argument
    say(f"{name} is now called --{present}")
    return f"--{present}{equals}{value}"


class GroupedCommand(TyperCommand):
    """A command whose help page has its options in groups, and whose options have underscores in their names."""

    def __init__(self, *arguments: object, params: list[Parameter], **options: object) -> None:
        for param in params:  # typer would make --max-inputs of max_inputs
            param.opts = [f"--{param.name}" if flag == f"--{param.name}".replace("_", "-") else flag for flag in param.opts]
        super().__init__(*arguments, params=params, **options)  # type: ignore[arg-type]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        former = FORMER_OPTIONS.get(ctx.info_name or "", {})
        return super().parse_args(ctx, [with_present_name(argument, former) for argument in args])

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        can_hide = any(param.name == "every_option" for param in self.params)  # else there is no --help-all
        every = bool(ctx.meta.get(EVERY))
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in (ARGUMENTS, *GROUPS)}
        hidden = 0
        order = {name: place for names in GROUPS.values() for place, name in enumerate(names)}
        for param in sorted(self.get_params(ctx), key=lambda param: order.get(param.name or "", len(order))):
            record, name = param.get_help_record(ctx), param.name or ""
            is_argument = param.param_type_name == "argument"
            if record and (is_argument or every or not can_hide or is_common(name)):
                group = ARGUMENTS if is_argument else group_of(name)
                groups[group].append((record[0].split(" / --no-")[0], record[1]))
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


class GroupedCommands(TyperGroup):
    """The page of all commands, in their groups."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                text = command.get_short_help_str(formatter.width)
                groups.setdefault(getattr(command, "rich_help_panel", ""), []).append((name, text))
        width = max(len(name) for rows in groups.values() for name, _ in rows)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


# --- options made from settings --------------------------------------------------------------------------------------
SettingsClass = type[TrainingArguments] | type[DataSettings] | type[StudySettings]
NAMES = str | tuple[str, ...] | None  # in Python; an option takes the names as one text with commas
METAVARS = {int: "<int>", float: "<float>"}
COMPLETED = {**CHOICES, "task": TASKS, "report_to": TRACKERS, "strategy": STRATEGIES}  # the values that a shell completes
# Short names. A dash means the same as an underscore in every name, so --batch-size and --batch_size are one option.
ALIASES = {
    "learning_rate": "--lr",
    "num_train_epochs": "--epochs",
    "per_device_train_batch_size": "--batch_size",
    "output_dir": "-o",
}
HelpAll = Annotated[bool, Option("--help-all", callback=show_every_option, is_eager=True, help="Show all options and exit.")]


def with_settings(*kinds: SettingsClass, only: Sequence[str] = ()) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return a decorator that gives a command `--help-all`, and one option per field, or for `only` some of the fields."""
    # The command receives None for options that were not given, so that a settings file can supply them.

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = [entry.name for entry in own]
        options = [option for kind in kinds for option in options_of(kind) if not only or option.name in only]
        own += [option for option in options if option.name not in taken]
        own += [inspect.Parameter("every_option", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)]
        command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        command.__annotations__ = {entry.name: entry.annotation for entry in own}
        return command

    return decorate


def options_of(kind: SettingsClass) -> list[inspect.Parameter]:
    """Return one keyword parameter per field of a settings class, with the field's name, type, default and help."""
    parameters = []
    hints: dict[str, Any] = get_type_hints(kind)  # classes and unions of classes
    for entry in fields(kind):
        hint = str | None if hints[entry.name] == NAMES else hints[entry.name]
        number = next((number for number in METAVARS if hint in (number, number | None)), None)
        option = Option(
            *([ALIASES[entry.name]] if entry.name in ALIASES else []),
            f"--{entry.name}" + (f"/--no-{entry.name}" if hint in (bool, bool | None) else ""),
            *([f" /--no_{entry.name}"] if entry.default is True else []),  # as in --no_report
            help=entry.metadata["help"] + default_of(entry.name, entry.default),
            show_default=False,
            parser=number_or_text(number) if number else None,
            metavar=METAVARS[number] if number else None,
            autocompletion=choices_of(entry.name) if entry.name in COMPLETED else None,
        )
        annotation: object = Annotated[(hint | None, option)]
        parameters.append(inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return parameters


def default_of(name: str, value: object) -> str:
    """Return how a help page shows a default. The default of an option that is off is not shown."""
    if name in CHOSEN_SETTINGS and value != AUTO:
        return f"  [default: chosen from the data and the model; {value} for GLUE]"
    return "" if value is None or isinstance(value, bool) else f"  [default: {value}]"


def number_or_text(kind: type[int] | type[float]) -> Callable[[str], int | float | str]:
    """Return a parser that keeps text that is not a number, so that the settings can report all problems at once."""

    def read(text: str) -> int | float | str:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def given_for(kind: SettingsClass, options: Mapping[str, object]) -> dict[str, object]:
    names = [entry.name for entry in fields(kind)]
    return {name: value for name, value in options.items() if name in names and value is not None}


def given_settings(
    config: str | None, data: str | None, model: str | None, new_head: bool, options: Mapping[str, object]
) -> GivenSettings:
    training, settings, search = (given_for(kind, options) for kind in (TrainingArguments, DataSettings, StudySettings))
    return read_settings(config).overridden_by(GivenSettings(data, model, training, settings, new_head, search))


def with_resume_value(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--resume=newest` for a `--resume` without a value, which typer cannot parse."""
    return [
        "--resume=newest" if argument == "--resume" and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "--"])
    ]


def end_of_own(arguments: Sequence[str]) -> int:
    """Return how many arguments are Glassloop's own. What follows the script of `glassloop run` belongs to the script."""
    if arguments[:1] != ["run"]:
        return len(arguments)
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        if arguments[place] == "--":
            return min(place + 2, len(arguments))
        place += 1 + (arguments[place].replace("-", "_") in ("__model_map", "__keep"))
    return min(place + 1, len(arguments))


# --- completion, and options that commands share ---------------------------------------------------------------------
def choices_of(name: str) -> Callable[[], list[str]]:
    return lambda: [*COMPLETED[name]]


def completed_runs(incomplete: str) -> list[str]:
    """Return the run folders whose path begins with `incomplete`, for a shell to complete: those in runs/ and beside it."""
    beside = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    runs: set[str] = set()
    for folder in {Path("runs"), beside}:
        with suppress(OSError):  # a folder that cannot be read has nothing to complete
            runs |= {str(path) for path in folder.iterdir() if is_run(path) or is_seeds_folder(path) or is_study(path)}
    return sorted(path for path in runs if path.startswith(incomplete))


DATA_HELP = "Data to {}: a file, a folder, glue/mrpc, quickstart, or a hub name."
MODEL_HELP = "Model: a folder, a run folder, a hub name, or quickstart."
RUN_HELP = "Run folder, folder of a model or an export, or folder of several seeds."
INT8_HELP = "Precision of predictions: auto, fp32, bf16, fp16; int8 on a CPU, compared with the run."
TrainingData = Annotated[str | None, Argument(help=DATA_HELP.format("train on"))]
Run = Annotated[str, Argument(help=RUN_HELP, autocompletion=completed_runs)]
RunFolder = Annotated[str, Argument(help="Run folder.", autocompletion=completed_runs)]
Model = Annotated[str | None, Option(help=MODEL_HELP)]
Config = Annotated[str | None, Option(help="TOML file with settings. Command-line options override it.")]
NewHead = Annotated[bool, Option("--new_head", help="Replace the classification head of a model that has one.")]
Device = Annotated[str, Option("--device", help="Device: cuda, mps, cpu, or auto.", autocompletion=choices_of("device"))]
Precision = Annotated[str, Option("--precision", help=INT8_HELP)]
Json = Annotated[bool, Option("--json", help="Print the result as JSON. All other output goes to standard error.")]

# --- wrong options ---------------------------------------------------------------------------------------------------
UsageError = typer.BadParameter.__mro__[1]  # of click, which recent versions of typer include under a private name
LIKELY = 0.85  # similarity of difflib from which a name is a slip of the keyboard: min_length is not max_length
DATA_WORDS = "data dataset dataset_name train_file train_data task_name file input"
# An option, with its value if the word implies one, and what other libraries and commands call it. Names that are similar, or
# the beginning of one option only, need no entry. A command has at most one of the options that a word may mean.
MEANT = {
    "--epochs": "num_epochs n_epochs max_epochs",
    "--max_steps": "steps num_steps max_train_steps num_training_steps",
    "--batch_size": "bs batchsize train_batch_size per_gpu_train_batch_size per_device_batch_size",
    "--per_device_eval_batch_size": "eval_batch_size per_gpu_eval_batch_size",
    "--gradient_accumulation_steps": "grad_accum accumulation_steps accumulate_grad_batches",
    "--lr_scheduler_type": "lr_scheduler scheduler",
    "--warmup_steps": "warmup_ratio warmup_proportion num_warmup_steps",
    "--weight_decay": "wd",
    "--optim": "optimizer",
    "--max_grad_norm": "clip grad_clip gradient_clip_val",
    "--positive_label": "pos_label",
    "--max_length": "max_len max_seq_length max_seq_len",
    "--seed": "random_seed random_state",
    "--device cuda": "gpu cuda",
    "--device cpu": "cpu use_cpu no_cuda",
    "--device mps": "mps use_mps_device",
    "--processes": "gpus num_gpus num_processes nproc_per_node",
    "--precision": "amp mixed_precision dtype torch_dtype",
    "--precision fp16": "fp16",
    "--precision bf16": "bf16",
    "--eval_strategy": "evaluation_strategy",
    "--eval_steps": "eval_every",
    "--save_steps": "save_every checkpointing_steps",
    "--logging_steps": "log_every log_interval",
    "--early_stopping_patience": "patience",
    "--report_to wandb": "wandb",
    "--report_to tensorboard": "tensorboard",
    "--output_dir": "output out out_dir save_dir",
    "--out": "output output_file",
    "--overwrite_output_dir": "overwrite force",
    "--resume": "resume_from_checkpoint continue",
    "--model": "m model_name model_name_or_path model_path base_model tokenizer_name",
    "--text": "text_column text_column_name sentence1",
    "--text_pair": "sentence2",
    "--label": "label_column label_column_name target",
    "--labels": "label_names class_names",
    "--delimiter": "sep separator",
    "--validation_share": "val_split validation_split test_size val_size",
    "--validation": "val dev validation_file",
    "--test": "test_file",
    "--limit": "max_samples max_train_samples num_samples",
    "--file": f"{DATA_WORDS} test_file",
    "--version": "v V",
    "--help": "help_all",
}

# Words for what is an argument, and how each command takes it.
DATA_USAGE = {verb: f"{verb} DATA" for verb in ("inspect", "data", "train", "config", "verify")} | {
    "evaluate": "evaluate RUN DATA"
}
RUN_USAGE = {verb: f"{verb} RUN" for verb in ("evaluate", "predict", "export", "verify")}
MEANT_AS_ARGUMENT = (
    (DATA_WORDS, "data", DATA_USAGE),
    ("run checkpoint model model_path model_name_or_path", "run", RUN_USAGE),
    ("sentence query", "text", {"predict": 'predict RUN "text"'}),
)
INSTEAD = {
    **{name: f"omit {name}: {one.text}" for name, one in SETTINGS.items() if one.outcome == UNNEEDED},
    **{name: one.text for name, one in SETTINGS.items() if one.outcome == REFUSED},
    "push_to_hub": "upload the model after the run: glassloop push RUN owner/name",
    "dropout": "set the dropout in the config.json of the model: it is a property of the model",
    "num_workers": f"omit it: {LOADER}",
    "torch_compile": COMPILE,
    **dict.fromkeys(("num_labels", "num_classes"), "omit it: the labels are counted in the training rows"),
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), "omit it: use the commands train, evaluate and predict"),
    **dict.fromkeys(("lora", "use_lora", "peft"), "use --adapter lora"),
    **dict.fromkeys(("trust_remote_code", "use_auth_token"), "omit it: Glassloop never runs code from the hub"),
    **dict.fromkeys(("verbose", "log_level"), "omit it; --debug shows the traceback of an error"),
    "quiet": "redirect standard error to a file: 2> log.txt",
}


def usage_error(raised: Exception, commands: Mapping[str, Sequence[str]], arguments: Sequence[str]) -> SettingsError | None:
    """Return a wrong command line as an error with what to do; None for any other error. `commands` are `option_names`."""
    if not isinstance(raised, UsageError):
        return None
    verb = next((argument for argument in arguments if argument and argument in commands), "")
    if (name := getattr(raised, "option_name", "")) and hasattr(raised, "possibilities"):
        return wrong_option(str(name), verb, commands, arguments)
    remedy = f"see glassloop {verb} --help" if verb else "see glassloop --help"
    message = str(raised.format_message()).rstrip(".")  # type: ignore[attr-defined]
    if not verb and arguments and message.startswith("No such command"):
        verbs = [*filter(None, commands)]
        near = closest(arguments[0], verbs)
        choice = f"use glassloop {near}" if near else f"use one of {listed(verbs)}"
        return SettingsError(f"there is no command {visible(arguments[0])}", choice)
    if "extra argument" in message:
        remedy = f"put quotes around a text or name with spaces; {remedy}"
    return SettingsError(message[:1].lower() + message[1:], remedy)


def wrong_option(name: str, verb: str, commands: Mapping[str, Sequence[str]], arguments: Sequence[str]) -> SettingsError:
    bare = underscored(name)
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    written = next((flag for flag in flags if underscored(flag) == bare), name)
    command = f"glassloop {verb}".strip()
    own = commands.get(verb, ())
    usages = [(what, usage[verb]) for words, what, usage in MEANT_AS_ARGUMENT if bare in words.split() and verb in usage]
    others = [f"glassloop {other}".strip() for other, options in commands.items() if bare in options]
    if option := meant_option(bare, own):
        remedy = f"use {option}"
    elif bare in INSTEAD:
        remedy = INSTEAD[bare]
    elif usages:
        remedy = "name the {} without an option: glassloop {}".format(*usages[0])
    elif others:
        remedy = f"it is an option of {listed(others)}"
    else:
        remedy = f"{command} {'--help-all' if 'help_all' in own else '--help'} lists the options"
    return SettingsError(f"{command} has no option {written}", remedy)


def underscored(flag: str) -> str:
    """Return the name of an option without dashes: one in it means the same as an underscore."""
    return flag.lstrip("-").replace("-", "_")


def meant_option(name: str, options: Iterable[str]) -> str | None:
    """Return the option that was meant by `name`, with its value if the name implies one; None if that is not certain."""
    known = {option: f"-{option}" if len(option) == 1 else "--" + re.sub("^no_", "no-", option) for option in options}
    for option, words in MEANT.items():
        if option.split()[0].lstrip("-") in known:
            known = dict.fromkeys(words.split(), option) | known
    if name in known:
        return known[name]
    if len(name) < 4:
        return None
    # Another number, or a "no", is never a slip of the keyboard; of short words, one letter makes another word.
    likely = [other for other in known if re.findall(r"\d|^no_", other) == re.findall(r"\d|^no_", name)]
    if len(name) > 4 and (near := get_close_matches(name, likely, n=1, cutoff=LIKELY)):
        return known[near[0]]
    longer = {option for other, option in known.items() if other.startswith(name)}
    return longer.pop() if len(longer) == 1 else None
