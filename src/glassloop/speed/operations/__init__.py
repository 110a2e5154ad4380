"""The operations of an encoder layer over packed tokens, in torch and in Triton."""
