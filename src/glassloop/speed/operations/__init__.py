"""The operations of an encoder layer over packed tokens, forward and backward.

`encoder_layer` and `embedding` are the whole layer and the embeddings: read these first. They call the operations around matrix
multiplications, either `torch_operations` (CPU) or `triton_operations` (GPU, with the kernels in `triton_kernels`), and
`attention`. `dropout` draws masks.

Names: `grad_x` is the gradient of the loss with respect to x. `low_x` is x in the dtype of matrix multiplications, bf16 or
fp32. `saved` is what a forward function keeps for its backward function.
"""
