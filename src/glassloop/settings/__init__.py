"""The settings of a run: training, data and study settings, the TOML file, defaults, and transformers' names for them."""
