"""AdamW over flat storage: all weights in one block of memory, all gradients in another."""
