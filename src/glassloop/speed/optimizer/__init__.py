"""AdamW over flat storage: all weights in one block of memory, all gradients in another.

`storage` moves a model's parameters into the blocks. `vocabulary` keeps only the word vectors that the data uses.
`adamw` updates everything in one pass: with torch on a CPU, with the kernels in `triton_adamw` on a GPU.
"""
