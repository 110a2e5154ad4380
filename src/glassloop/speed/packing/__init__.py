"""Packed batches: the real tokens of all rows one after the other, without padding.

`layout` describes one packed batch and packs rows into it. `packed_batches` reads the rows of a data set, packs them in the
order of an epoch, and uploads them to the device.
"""
