"""A Triton backend in name only, and repairs of vLLM for one model (see README.md beside this folder)."""
