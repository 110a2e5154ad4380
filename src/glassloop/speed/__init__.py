"""Exact savings: the same computation with less work, for the backends packed and graphs.

`--backend plain` uses none of them. Otherwise a run uses all that fit its model, after it has compared one batch with the plain
model. In reading order:

1. `encoder_parts`: the layers and tables of a model, found with the table of families.
2. `packing`: batches without padding.
3. `optimizer`: all weights, gradients and moments in flat memory, and AdamW over it.
4. `operations`: the forward and backward pass of a layer over packed tokens, in torch and in Triton.
5. `encoders`: which models are made fast, and how a model and its fast layers are connected.
6. `capture`: whole steps as captured CUDA graphs, and kernels compiled ahead.
"""
