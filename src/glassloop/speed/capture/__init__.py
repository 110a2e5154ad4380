"""Captured CUDA graphs.

`graph_step` captures a whole step once per shape and replays it. `precompile` launches Triton kernels, and compiles those of a
step in parallel before the first step.
"""
