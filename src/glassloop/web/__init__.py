"""The live page: a small local server that shows the runs of a folder while they train. It only reads."""
