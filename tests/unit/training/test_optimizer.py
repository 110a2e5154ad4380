"""AdamW and its schedule: which weights decay in every family, and every schedule by its name."""

from __future__ import annotations

import math

import pytest
import torch
from families import FAMILIES, tiny_model
from transformers import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from glassloop.base.errors import SettingsError
from glassloop.settings.training import SCHEDULES, TrainingArguments
from glassloop.training import optimizer as optimizer_module
from glassloop.training.optimizer import AdamW, decay_groups, make_optimizer, make_plan, make_scheduler, optimizer_for

OPTIONS = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 4},
}


def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_and_norms_are_spared_as_in_transformers_and_nothing_is_lost(family: str) -> None:
    model = tiny_model(family)
    with_decay, without = decay_groups(model, 0.01)
    assert (with_decay["weight_decay"], without["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, spared = ({names[id(parameter)] for parameter in group["params"]} for group in (with_decay, without))
    assert decayed | spared == {*names.values()}
    assert not decayed & spared
    norms = (torch.nn.LayerNorm, torch.nn.RMSNorm)
    in_norms = {name for name in names.values() if isinstance(model.get_submodule(name.rpartition(".")[0]), norms)}
    assert spared == {name for name in names.values() if name.endswith("bias")} | in_norms
    assert all(model.get_parameter(name).dim() >= 2 for name in decayed), "a matrix, an embedding, nothing else"
    assert any("embed" in name for name in decayed)
    forbidden = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    theirs = {*get_parameter_names(model, [torch.nn.LayerNorm], forbidden)}
    if family == "mpnet":  # its table of relative positions has "bias" in its name, but is no bias
        theirs.add("mpnet.encoder.relative_attention_bias.weight")
    assert decayed == theirs


def test_frozen_parameters_are_in_no_group_and_the_old_adamw_has_its_old_defaults(says) -> None:
    model = tiny_model()
    model.base_model.requires_grad_(False)
    groups = decay_groups(model, 0.01)
    assert [len(group["params"]) for group in groups] == [1, 1]  # the head's weight and bias
    model.requires_grad_(False)
    with says("all parameters of the model are frozen", "unfreeze some: parameter.requires_grad_(True)"):
        make_optimizer(model, 1e-3)
    for model, decay in ((torch.nn.Linear(3, 2, bias=False), 0.01), (torch.nn.Sequential(torch.nn.LayerNorm(3)), 0.0)):
        assert [group["weight_decay"] for group in decay_groups(model, 0.01)] == [decay]
    (group,) = AdamW([weight()]).param_groups
    assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (1e-3, 0.0, (0.9, 0.999), 1e-8)
    (group,) = AdamW([weight()], lr=5e-5, correct_bias=True, no_deprecation_warning=True).param_groups
    assert group["lr"] == 5e-5
    with says("AdamW no longer has correct_bias=False", "omit it: the bias is always corrected"):
        AdamW([weight()], correct_bias=False)


def test_the_settings_reach_adamw_and_fused_and_unfused_agree() -> None:
    steps = []
    for fused in [True, False]:
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 8)
        optimizer = make_optimizer(model, 1e-2, weight_decay=0.03, betas=(0.8, 0.95), epsilon=1e-6, fused=fused)
        assert type(optimizer) is torch.optim.AdamW
        for group, decay in zip(optimizer.param_groups, (0.03, 0.0), strict=True):
            assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-2, (0.8, 0.95), 1e-6, decay)
            assert bool(group["fused"]) is fused
        for _ in range(5):
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        steps.append(model.weight.detach().clone())
    torch.testing.assert_close(*steps)


def rates(name: str, warmup: int = 0, steps: int = 20, options: dict | None = None) -> list[float]:
    """The rate of each step, as a share of the highest."""
    optimizer = torch.optim.AdamW([weight()], lr=1.0)
    scheduler = make_scheduler(name, optimizer, warmup, steps, OPTIONS.get(name) if options is None else options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_every_schedule_builds_and_steps_with_its_options_and_wrong_or_missing_ones_are_refused() -> None:
    for name in SCHEDULES:
        for warmup in [0, 5]:
            found = rates(name, warmup)
            assert all(math.isfinite(rate) and 0 <= rate <= 1 + 1e-9 for rate in found)
            assert max(found) > 0.9
            if warmup and name != "constant":
                assert found[0] <= 0.2
                assert found[:5] == sorted(found[:5])
    assert rates("cosine_with_restarts", options={"num_cycles": 2})[10] == pytest.approx(1.0)
    assert rates("cosine_with_restarts", options={"num_cycles": 1})[10] == pytest.approx(0.5)
    for name, options in [("cosine", {"num_circles": 2}), ("warmup_stable_decay", {}), ("cosine_with_min_lr", {})]:
        with pytest.raises(SettingsError, match=f"lr_scheduler_type {name}: .*{''.join(options)}") as caught:
            rates(name, options=options)
        assert caught.value.remedy == "check lr_scheduler_kwargs"


@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 900), (7, 900), (5, 5), (9, 5), (1, 2)])
def test_linear_is_bit_identical_to_transformers(warmup: int, steps: int) -> None:
    optimizer, other = (torch.optim.AdamW([weight()], lr=5e-5) for _ in range(2))
    ours, theirs = make_scheduler("linear", optimizer, warmup, steps), get_scheduler("linear", other, warmup, steps)
    assert ours.state_dict() == theirs.state_dict(), "checkpoints of both can be resumed"
    for _ in range(steps + 3):
        assert ours.get_last_lr() == theirs.get_last_lr()
        for part in (optimizer, other, ours, theirs):
            part.step()


def test_an_optimizer_by_name_has_the_usual_groups_and_its_extra_settings() -> None:
    for name, kind in [("adafactor", "Adafactor"), ("sgd", "SGD"), ("adagrad", "Adagrad"), ("rmsprop", "RMSprop")]:
        found = optimizer_for(TrainingArguments(optim=name, learning_rate=0.1, weight_decay=0.2), tiny_model())
        assert type(found).__name__ == kind
        assert [(group["lr"], group["weight_decay"]) for group in found.param_groups] == [(0.1, 0.2), (0.1, 0.0)]
    found = optimizer_for(TrainingArguments(optim="sgd", optim_args="momentum=0.9, nesterov=true"), tiny_model())
    assert (found.defaults["momentum"], found.defaults["nesterov"]) == (0.9, True)
    assert optimizer_module.optimizer_options("a=1,b=False,c=word") == {"a": 1.0, "b": False, "c": "word"}
    for given, problem in [
        ({"optim": "sgd", "optim_args": "speed=1"}, "the optimizer SGD cannot be made"),
        ({"optim": "sgd", "optim_args": "momentum"}, "not like momentum=0.9"),
        ({"optim_args": "momentum=1"}, "optim_args has no effect on adamw_torch_fused"),
    ]:
        with pytest.raises(SettingsError, match=problem):
            optimizer_for(TrainingArguments(**given), tiny_model())


def test_the_plan_is_plain_numbers_and_impossible_ones_are_refused() -> None:
    for settings, expected in [
        ({}, {"max_steps": 1377, "steps_per_epoch": 459, "warmup_steps": 0, "eval_every": 0, "save_every": 459}),
        ({"gradient_accumulation_steps": 4}, {"max_steps": 345, "steps_per_epoch": 115, "accumulate": 4}),
        ({"num_train_epochs": 0.5}, {"max_steps": 230}),
        ({"max_steps": 7, "warmup_steps": 0.5}, {"max_steps": 7, "warmup_steps": 4}),
        ({"warmup_steps": 12}, {"warmup_steps": 12}),
        ({"warmup_steps": 1.0}, {"warmup_steps": 1}),
        ({"eval_strategy": "epoch", "save_strategy": "no"}, {"eval_every": 459, "save_every": 0}),
        ({"eval_strategy": "steps", "logging_steps": 3}, {"eval_every": 3, "log_every": 3}),
        ({"eval_strategy": "steps", "eval_steps": 5}, {"eval_every": 5}),
        ({"save_strategy": "steps", "save_steps": 9}, {"save_every": 9}),
        ({}, {"best_metric": "eval_loss", "greater_is_better": False}),
        ({"metric_for_best_model": "f1"}, {"best_metric": "eval_f1", "greater_is_better": True}),
        ({"metric_for_best_model": "eval_mse", "greater_is_better": False}, {"best_metric": "eval_mse"}),
    ]:
        plan = make_plan(TrainingArguments("x", **settings), 459, has_eval=True)
        assert {name: getattr(plan, name) for name in expected} == expected
    with pytest.raises(SettingsError, match="leaves no batch"):
        make_plan(TrainingArguments("x"), 0, has_eval=True)
    with pytest.raises(SettingsError, match="no eval_dataset"):
        make_plan(TrainingArguments("x", eval_strategy="epoch"), 5, has_eval=False)
