"""Exact optimizations: the same computation with less work, for the backends packed and graphs.

`--backend plain` uses none of them. Otherwise a run uses all that fit its model, after it has compared one batch with the plain
model. In reading order:

1. `encoder_parts`: the layers and tables of a model, found with the table of families, and which models have a fast form.
2. `packing`: batches without padding.
3. `storage`: all weights, gradients and moments in flat memory, and `optimizer`: AdamW over it.
4. `operations`: the parts of a layer in plain torch; `triton_operations` and `triton_kernels`: the same for GPUs.
5. `training_model`, `inference_model`: the fast layers of a model, and how they are connected to it.
"""
