"""The interface of transformers' Trainer: results under the same names, and errors for what Glassloop does not support."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from glassloop.arguments import TrainingArguments
from glassloop.errors import SettingsError, listed, visible
from glassloop.markup import scores

ModelT = TypeVar("ModelT")


class EvalPrediction(NamedTuple):
    """What `compute_metrics` gets: logits and labels of all rows, in their order.

    Args:
        predictions: The logits of each row; a tuple of them and of other arrays if the model returns more.
        label_ids: The labels of each row; a tuple if `label_names` names several.
    """

    predictions: Any
    label_ids: Any


class Metrics(dict[str, float]):
    """What `evaluate` returns: metrics by name. A dict, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        return scores("Evaluation", self)


class PredictionOutput(NamedTuple):
    """What `predict` returns: logits and labels of all rows, in their order, and metrics.

    Args:
        predictions: The logits of each row; a tuple of them and of other arrays if the model returns more.
        label_ids: The labels of each row; None if there are none.
        metrics: The metrics by name.
    """

    predictions: Any
    label_ids: Any
    metrics: dict[str, float]

    def _repr_html_(self) -> str:
        first = self.predictions[0] if isinstance(self.predictions, tuple) else self.predictions
        return scores("Predictions", self.metrics, {"shape of the logits": str(np.shape(first))})


class TrainOutput(NamedTuple):
    """What `train` returns: the number of steps, the mean loss, and metrics.

    Args:
        global_step: The number of steps.
        training_loss: The mean loss of all steps.
        metrics: Speed and loss by name.
    """

    global_step: int
    training_loss: float
    metrics: dict[str, float]

    def _repr_html_(self) -> str:
        return scores("Training", self.metrics, {"steps": f"{self.global_step:,}"})


# Arguments of transformers' Trainer, and what to do instead.
UNSUPPORTED = {
    "model_init": "build the model first: Trainer(model=load_model(...))",
    "compute_loss_func": "pass loss=, a function of logits and labels that returns one loss per row",
    "preprocess_logits_for_metrics": "do it in compute_metrics",
    "optimizer_cls_and_kwargs": "pass optimizers=(optimizer, scheduler)",
    "peft_config": "wrap the model first: model = peft.get_peft_model(model, config)",
}
# Methods and attributes of transformers' Trainer that this Trainer does not have, grouped by what to do instead.
BY_REMEDY = {
    UNSUPPORTED["compute_loss_func"]: "compute_loss label_smoother",
    UNSUPPORTED["optimizer_cls_and_kwargs"]: """create_optimizer create_scheduler create_optimizer_and_scheduler
        get_optimizer_cls_and_kwargs get_decay_parameter_names _get_learning_rate optimizer lr_scheduler""",
    "pass loss= to change the loss, on_gradients= to change gradients": """training_step _clip_grad_norm _get_grad_norm
        _has_mixed_mesh_grads _mixed_mesh_grad_norm _sync_replicated_trainable_parameters""",
    "pass a data set with len() and [number], and data_collator=": """get_train_dataloader get_eval_dataloader
        get_test_dataloader _get_dataloader _get_train_sampler _get_eval_sampler _get_collator_with_removed_columns
        _remove_unused_columns _set_signature_columns_if_needed _prepare_input _prepare_inputs get_batch_samples
        num_examples label_names _signature_columns""",
    "pass compute_metrics=, or override metrics_of or evaluate": """prediction_step prediction_loop evaluation_loop _evaluate
        _determine_best_metric _nested_gather _pad_across_processes""",
    "pass callbacks=, each a glassloop.Callback": """log store_flos floating_point_ops _maybe_log_save_evaluate callback_handler
        control end""",
    "override write_model, which also writes the model of a checkpoint": """_save _save_checkpoint _save_rng_state
        _save_optimizer_and_scheduler _save_scaler _rotate_checkpoints _sorted_checkpoints _get_output_dir""",
    "pass resume_from_checkpoint= to train()": """_load_from_checkpoint _load_best_model _load_rng_state
        _load_optimizer_and_scheduler _load_scaler _load_callback_state _issue_warnings_after_load""",
    "write the loop yourself from the same parts: examples/plain_loop.py": """_inner_training_loop _init_training_state
        _prepare_for_training _run_epoch _finalize_training set_initial_training_values get_total_train_batch_size""",
    "pass processing_class=": "tokenizer",
    "pass accelerator=, or set precision": """accelerator create_accelerator_and_postprocess _build_accelerator_args
        compute_loss_context_manager autocast_smart_context_manager _wrap_model _move_model_to_device model_wrapped
        gather_function get_sp_size get_cp_size get_tp_size _prepare_context_parallel_inputs""",
    UNSUPPORTED["model_init"]: "call_model_init _hp_search_setup _report_to_hp_search _tune_save_checkpoint",
    "omit it: the loss of a step is always divided by all of its rows": "_get_num_items_in_batch",
    "add the noise in a forward hook of model.get_input_embeddings()": "neftune_noise_alpha",
    "omit it": "_validate_args _update_auto_batch_size _track_num_input_tokens _push_from_checkpoint _finish_current_push",
}
INSTEAD = UNSUPPORTED | {name: remedy for remedy, names in BY_REMEDY.items() for name in names.split()}
# Methods that only users call; transformers' Trainer calls them during training, too.
ONLY_CALLED_BY_USERS = {"save_model": "override write_model, which also writes the model of a checkpoint"}
# Settings and parts that are only read when a Trainer is constructed.
READ_ONCE = ("output_dir", "device", "precision", "backend", "pad_to_multiple_of")
FIXED_PARTS = ("processing_class",)


def refuse_unsupported(given: dict[str, object]) -> None:
    """Raise `SettingsError` for an argument of a Trainer that is unknown or not supported."""
    for name, value in given.items():
        if name not in UNSUPPORTED:
            raise SettingsError(f"Trainer has no argument {visible(name)}", "see help(glassloop.Trainer)")
        if value is not None:
            raise SettingsError(f"Trainer does not support {name}", UNSUPPORTED[name])


def refuse_keys(ignore_keys: object) -> None:
    """Raise `SettingsError` if outputs of the model are to be ignored: only its logits are read."""
    if ignore_keys is not None:
        raise SettingsError("ignore_keys is not supported: only the logits of a model are read", "omit it")


def unused_names(kind: type) -> dict[str, str]:
    """Return the names of transformers' Trainer that a class has no use for, each with what to do instead."""
    used: frozenset[str] = getattr(kind, "_used_names", frozenset())
    return {name: remedy for name, remedy in (INSTEAD | ONLY_CALLED_BY_USERS).items() if name not in used}


def is_of_script(kind: type, name: str) -> bool:
    """Return whether a class has a method that was not defined by Glassloop."""
    return hasattr(kind, name) and not str(getattr(kind, name).__module__).startswith("glassloop.")


def refuse_hooks(kind: type) -> None:
    """Raise `SettingsError` with all methods of a subclass that Glassloop would never call."""
    instead = unused_names(kind)
    own = next((parent for parent in kind.__mro__ if parent.__module__ == "glassloop.trainer"), kind)
    found = [name for name in instead if name in INSTEAD and is_of_script(kind, name)]
    found += [name for name in instead if name in ONLY_CALLED_BY_USERS and getattr(kind, name) is not getattr(own, name)]
    if found:
        remedies = dict.fromkeys(instead[name] for name in found)
        raise SettingsError(f"{kind.__name__} overrides {listed(found)}, which Glassloop does not call", "; ".join(remedies))


def refuse_no_model(model: ModelT | None) -> ModelT:
    """Return the model. Raises `SettingsError` if there is none."""
    if model is None or not hasattr(model, "forward"):
        raise SettingsError("Trainer needs a model", "pass model=load_model(...)")
    return model


def refuse_assignment(trainer: object, name: str, value: object) -> None:
    """Raise `SettingsError` for an assignment to a Trainer that would have no effect."""
    instead = unused_names(type(trainer))
    if name in instead:
        raise SettingsError(f"assigning {name} to a Trainer has no effect in Glassloop", instead[name])
    if name == "model":
        refuse_no_model(value)
    if name == "args" and not isinstance(value, TrainingArguments):
        problem = f"args is a {type(value).__module__}.{type(value).__name__}, not glassloop.TrainingArguments"
        raise SettingsError(problem, "change the import: from glassloop import TrainingArguments")
    if name not in vars(trainer):
        return  # the Trainer is being constructed
    changed = [name] if name in FIXED_PARTS else []
    if name == "args":
        before = vars(trainer)[name]
        read = {setting: getattr(before, setting) for setting in READ_ONCE}
        read["device"] = getattr(read["device"], "type", read["device"])  # scripts read a device of torch
        changed = [setting for setting in READ_ONCE if vars(value)[setting] not in (vars(before)[setting], read[setting])]
    if changed:
        problem = f"{listed(changed)} cannot be changed after a Trainer is constructed"
        raise SettingsError(problem, "construct a new Trainer")
