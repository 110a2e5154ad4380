"""What a model takes along when it is shared: its card, and the upload to a hub."""
