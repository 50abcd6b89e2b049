"""The decoder's projection weights, taken from a DeepSeek-V4 checkpoint (see `export`). Standard library and numpy
only.
"""
