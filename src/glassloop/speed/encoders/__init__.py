"""Fast forms of whole models.

`recognition` decides which models may be made fast. `fast_model` chooses the form: `replaced_layers` runs our own layers over
packed tokens, `own_layers` keeps the layers of the model. Both store its weights flat.
"""
