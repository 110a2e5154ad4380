"""Exact optimizations: the same computation with less work, for the backends packed and graphs.

`--backend plain` uses none of them. Otherwise a run uses all that fit its model, after it has compared one batch with the plain
model. In reading order:

1. `encoder_parts`: the layers and tables of a model, found with the table of families, and which models have a fast form.
2. `packing`: batches without padding.
3. `storage`: all weights, gradients and moments in flat memory, and `optimizer`: AdamW over it; on a GPU with `triton_adamw`.
4. `layers`: the forward and backward pass of a layer over packed tokens, with the `operations` of torch or `triton_operations`.
5. `training_model`, `inference_model`, `int8_layers`: how a model and its fast layers are connected.
6. `graph_step`: whole steps as captured CUDA graphs, and `kernel_launcher`: kernels compiled ahead.
"""
