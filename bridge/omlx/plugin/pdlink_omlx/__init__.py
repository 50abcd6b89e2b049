"""Endpoints in an oMLX server that plan a request, adopt blocks written by pdlink, and give them back (see API.md).

This module imports nothing: the import hook loads it at the start of every interpreter of the environment.
"""

__version__ = "0.1.0"
