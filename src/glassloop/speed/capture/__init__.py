"""CUDA graphs: steps captured once per shape and replayed, and kernels compiled ahead."""
