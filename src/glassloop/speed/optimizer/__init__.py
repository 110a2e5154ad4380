"""AdamW over flat storage: all weights in one block of memory, all gradients in another.

`storage` moves a model's parameters into the blocks. `vocabulary` reduces the table of word vectors to those that the data use.
`adamw` updates everything in one pass: with torch on a CPU, with the kernels in `triton_adamw` on a GPU.
"""
