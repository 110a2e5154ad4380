"""How a step is executed: plain torch, Accelerate, FSDP, packed, captured CUDA graphs, and the choice among them."""
