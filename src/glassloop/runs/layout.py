"""The names of everything in a run folder, and how to find it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

RUN_NAME, HISTORY_NAME, SESSIONS_NAME = "run.json", "history.jsonl", "sessions.jsonl"
TRAINER_NAME = "trainer.json"  # the record of a training by a Trainer, which has no run.json
REPORT_NAME = "report.html"
TRAINED_NAME = "trained.json"  # exists from the last step until the run is finished; describes the final model
TRAINED_WEIGHTS_NAME = "trained.safetensors"  # beside it, if the final model is not saved as it was trained
MODEL_NAME = "model"
CARD_NAME, CALIBRATION_NAME = "README.md", "calibration.json"  # in the folder of the model, written after it
KEPT_CHECKPOINTS_NAME = "checkpoints"  # checkpoints that were moved aside: checkpoints.kept-1
RESERVE_NAME = f".{MODEL_NAME}.reserved"  # disk space for the final model, held during training
PREDICTIONS_SUFFIX = "-predictions.jsonl"
SEEDS_NAME = "seeds.json"
STUDY_NAME, RUNGS_NAME = "study.json", "rungs.json"  # of a study, and of each of its runs that was paused
CHECKPOINT = r"checkpoint-(?:0|[1-9]\d*)"
EARLIER_CHECKPOINTS = "checkpoints/step-*"  # where earlier versions wrote them
NAMES = (
    *(RUN_NAME, TRAINER_NAME, HISTORY_NAME, REPORT_NAME, TRAINED_NAME, TRAINED_WEIGHTS_NAME, MODEL_NAME),
    *(CARD_NAME, CALIBRATION_NAME),
)
WRITTEN = "|".join([*map(re.escape, NAMES), f".+{re.escape(PREDICTIONS_SUFFIX)}"])
LEFTOVER = re.compile(rf"\.({CHECKPOINT}|{WRITTEN})\.([a-z0-9_]{{8}}|old|[a-z0-9_]{{8}}\.old)")


def predictions_name(split: str) -> str:
    """Return the name of the file with the predictions for a split."""
    return f"{split}{PREDICTIONS_SUFFIX}"


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of a step, such as `checkpoint-500`."""
    return f"checkpoint-{step}"


def is_checkpoint_name(name: str) -> bool:
    """Return whether a folder of this name in a run folder is a checkpoint."""
    return re.fullmatch(CHECKPOINT, name) is not None


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from its name."""
    return int(checkpoint.name.rpartition("-")[2])


def seed_name(seed: int) -> str:
    """Return the name of the run folder of one random seed, such as `seed-42`."""
    return f"seed-{seed}"


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run.json, whatever its content and whoever may read it."""
    return has_name(folder / RUN_NAME)


def is_trainer_folder(folder: Path) -> bool:
    """Return whether a Trainer, not the command, has recorded its training in a folder."""
    return not is_run(folder) and has_name(folder / TRAINER_NAME)


def is_seeds_folder(folder: Path) -> bool:
    """Return whether a folder holds the runs of several random seeds."""
    return has_name(folder / SEEDS_NAME)


def is_study(folder: Path) -> bool:
    """Return whether a folder holds a study."""
    return has_name(folder / STUDY_NAME)


def has_name(path: Path) -> bool:
    """Return whether a path exists, or may exist in a folder that cannot be read."""
    try:
        path.lstat()
    except PermissionError:
        return True  # reading it reports the missing permission
    except (OSError, ValueError):
        return False
    return True


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the completely written checkpoints in a run folder, newest first, damaged or not."""
    found = [path for path in folder.glob("checkpoint-*") if is_checkpoint_name(path.name)] if folder.is_dir() else []
    return sorted(found, key=step_of, reverse=True)


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run has a checkpoint or a final model to resume from, damaged or not."""
    return (folder / TRAINED_NAME).exists() or bool(checkpoints_in(folder))


def leftovers(folder: Path) -> list[Path]:
    """Return the incomplete files that a crash left in a folder, or that a running process is writing there."""
    return sorted(path for path in folder.glob(".*") if LEFTOVER.fullmatch(path.name)) if folder.is_dir() else []


def remove_leftovers(folder: Path) -> list[str]:
    """Remove the incomplete files that a crash left in a folder, and return their names."""
    found = leftovers(folder)
    for path in found:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return [path.name for path in found]
