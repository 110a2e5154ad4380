"""The commands from Python: `train` is `glassloop train`, and `Run` reads what it leaves and uses its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError, did_you_mean, visible
from glassloop.base.output import Clock, show_on
from glassloop.report.build import RunFolder
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.settings.training import TrainingArguments, refuse, translated
from glassloop.settings.transformers_names import SETTINGS

if TYPE_CHECKING:
    from glassloop.data.interfaces import Data
    from glassloop.predict.answers import Given, Prediction
    from glassloop.predictor import Predictor


def train(
    data: Data | None = None,
    *,
    model: str | Path | None = None,
    config: str | Path | None = None,
    new_head: bool = False,
    resume: str | Path | bool | None = None,
    restart: bool = False,
    report: bool = True,
    **settings: object,
) -> Run:
    """Fine-tune a model, evaluate it, and save it in a run folder, as the command `glassloop train` does.

    What is not given is chosen from the data and the model. Rows in memory are stored in the cache first, so that the command
    can resume and evaluate the run, too.

    Args:
        data: A file, a folder, glue/mrpc, quickstart or a hub name; or rows in memory: a `datasets.Dataset` or `DatasetDict`, a
            frame of pandas or polars, an Arrow table, a list of dicts, or a dict of those by split. Default: quickstart.
        model: A folder, a run folder, a hub name, or quickstart. Default: quickstart.
        config: A TOML file with settings, as `glassloop config` writes it. The other arguments override it.
        new_head: Whether to replace the classification head of a model that has one.
        resume: The folder of a run to resume, or True for that in output_dir.
        restart: With resume, start again from step 0. Old checkpoints are kept.
        report: Whether to write report.html at the end.
        **settings: Settings of `TrainingArguments` and `DataSettings`, such as text="review", label="sentiment",
            output_dir="runs/reviews" and num_train_epochs=3.

    Returns:
        The run. A notebook shows its report.

    Raises:
        SettingsError: If a setting is unknown or invalid.
        DataError: If the data cannot be found or read, or a row has no text or no label.
        ModelError: If the model cannot be used.
        KeyboardInterrupt: If Ctrl-C stopped the run. `train(resume=run_folder)` continues it.
    """
    from glassloop.cli.train import refuse_wrong  # not at the top: `Run` needs neither typer nor rich
    from glassloop.training.progress import choose_display

    choose_display(plain=bool(settings.get("disable_tqdm")))
    try:
        clock = Clock()
        given = given_from_python(data, model, config, new_head, settings)
        resumed = "newest" if resume is True else str(resume) if resume else None
        refuse_wrong(given, resumed)
        from glassloop.study.run import train_run

        return Run(train_run(given, resumed, restart=restart, with_report=report, clock=clock))
    finally:
        show_on(None)


def given_from_python(
    data: Data | None, model: str | Path | None, config: str | Path | None, new_head: bool, settings: dict[str, object]
) -> GivenSettings:
    """Return the arguments of `train` as the settings of a run. Raise one `SettingsError` with everything that is wrong."""
    from glassloop.cli.options import DATA_SETTINGS, TRAINING_SETTINGS

    names = (*DATA_SETTINGS, *TRAINING_SETTINGS)
    refuse([unknown_setting(name, names) for name in settings if name not in (*names, *SETTINGS)])
    for_data = {name: value for name, value in settings.items() if name in DATA_SETTINGS and value is not None}
    others = {name: value for name, value in settings.items() if name not in DATA_SETTINGS}
    arguments, problems = translated(others, TrainingArguments)
    refuse(problems)
    if data is not None and not isinstance(data, str | Path):
        from glassloop.data.sources import stored_rows

        data = stored_rows(data)
    source, model = (None if name is None else str(name) for name in (data, model))
    given = GivenSettings(source, model, arguments, for_data, new_head)
    return read_settings(None if config is None else str(config)).overridden_by(given)


def unknown_setting(name: str, names: Sequence[str]) -> SettingsError:
    """Return the problem of a name that is no setting. A word of other libraries, such as `epochs`, is answered by ours."""
    from glassloop.cli.options import ALIASES, meant_option, underscored

    short = {underscored(option): setting for setting, option in ALIASES.items()}
    meant = underscored(meant_option(name, (*names, *short)) or "")
    remedy = (
        f"use {short.get(meant, meant)}" if meant else "see help(glassloop.TrainingArguments) and help(glassloop.DataSettings)"
    )
    return SettingsError(f"unknown setting {visible(name)}{'' if meant else did_you_mean(name, names)}", remedy)


class Run(RunFolder):
    """A run folder: its results and its model. A notebook shows its report.

    The record is read once; history and predictions are read again whenever they are asked for.

    Args:
        folder: The run folder: the `output_dir` of `glassloop train`, of `train` or of a `Trainer`.

    Attributes:
        folder: The run folder.
        record: Everything run.json says about the run.

    Raises:
        ModelError: If the folder is not a run folder, or if its run.json is damaged.
    """

    _predictor: Predictor | None = None

    @property
    def predictor(self) -> Predictor:
        """Return the `Predictor` of the run, which is loaded once."""
        from glassloop.predictor import Predictor

        self._predictor = self._predictor or Predictor(self.folder)
        return self._predictor

    def predict(self, texts: Given | Sequence[Given], pairs: str | Sequence[str] | None = None) -> list[Prediction]:
        """Return a prediction for every text or pair of texts, in their order.

        Args:
            texts: A text, or a list of texts, of pairs `(first, second)`, or of dicts with the text columns of the run.
            pairs: The second text of each pair, if `texts` are the first texts.
        """
        return self.predictor.predict(texts, pairs)

    def serve(self, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        """Answer requests over HTTP, as `glassloop serve` does, until Ctrl-C.

        Args:
            host: The address to listen on. Default: this machine only.
            port: The port to listen on. 0 chooses a free one.
        """
        from glassloop.cli.serve import serve

        serve([str(self.folder)], host=host, port=port)
