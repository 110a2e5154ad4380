"""Which of transformers' Trainer tests apply to a classifier, and why some that apply end differently: one rule per line.

A rule is a regular expression that is searched in `file.py::Class::test`. The first rule that is found counts.
"""

from __future__ import annotations

import re

# Tests that do not apply: what they test is not part of training a classifier on one machine.
NOT_APPLICABLE: tuple[tuple[str, str], ...] = (
    (r"^test_trainer_seq2seq", "sequence-to-sequence models"),
    (r"WholeWordMask|LanguageModeling|PermutationLanguage|SOP|Seq2Seq|TokenClassif|Flattening", "collators of other tasks"),
    (r"test_data_collator", "collators of transformers, which scripts keep on importing from transformers"),
    (r"_lm$|causal_lm|encoder_decoder|GPT2|test_logging_inf_nan_filter|loss_parity", "language models"),
    (r"DynamicShapes.*test_dynamic_shapes", "outputs of varying length: taggers and generators"),
    (r"feature_extractor|image_processor|saves_processor", "images and sound"),
    (r"deepspeed|Deepspeed", "DeepSpeed"),
    (r"Hub|push_to_hub", "needs a login to the model hub"),
    (r"bnb|8bit|lomo|galore|Galore|apollo|grokadamw|schedulefree|stable_adamw|torch_optimi|Liger|liger", "optional packages"),
    (r"peft_adapters", "several adapters at once"),
    (r"Ray|Wandb|SwanLab|Trackio|Kubeflow|kubeflow|HyperParameterSearchBackends", "services of others"),
    (r"TrainerMixedPrecision|test_(fp16|bf16)_full_eval|tf32|torch_compile_(train|eval)", "needs a GPU"),
    (r"::JITCheckpointTest", "transformers' class for checkpoints before a kill; Glassloop saves when a signal arrives"),
    (r"::TrainerDDPKwargsTest", "internals of transformers' use of DistributedDataParallel"),
    (
        r"test_eval_sampler_deterministic|shard|Shard|distributed_(sampler|length)",
        "internals of transformers' samplers and files",
    ),
    (r"test_special_token_alignment|without_model_config|collator_tokenizer_by_default", "language models"),
)
NO_GLASSLOOP = "tests a part of transformers that Glassloop leaves in place: nothing of Glassloop is constructed"
NOT_HERE = "fails or is skipped with transformers itself on this machine (network, GPU or an optional package)"

# Tests that apply, and end differently on purpose.
DIFFERENT: tuple[tuple[str, str], ...] = (
    (r"test_load_best_model_requires_matching", "the best weights are kept in memory, so any two strategies go together"),
    (r"test_log_level", "Glassloop prints its lines itself; the level of transformers' logger changes nothing (reported)"),
    (r"test_mem_metrics", "memory is not measured; skip_memory_metrics=False is reported as without effect"),
    (r"test_predict", "predictions are the logits alone, also of a model with more outputs"),
    (r"label_smoothing_multi_label", "label smoothing of several labels is computed, where transformers switches it off"),
    (r"auto_batch_size_with_resume", "reads transformers' internal attribute _train_batch_size"),
    (r"test_best_model_checkpoint_behavior", "save_total_limit counts recent checkpoints; the best one is kept in addition"),
    (r"test_can_resume_training$", "all resumed weights agree; the error for a missing checkpoint has Glassloop's words"),
    (r"test_accelerator_config_empty", "reads options of transformers' own Accelerator; Glassloop has its own loaders"),
)


def found_in(rules: tuple[tuple[str, str], ...], test: str) -> str | None:
    """Return the reason of the first rule that a test fits."""
    return next((reason for pattern, reason in rules if re.search(pattern, test)), None)
