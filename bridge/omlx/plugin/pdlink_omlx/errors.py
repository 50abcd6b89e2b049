"""The one exception of this package, and the codes that tell a caller what to do."""

from __future__ import annotations

# HTTP status of each code. API.md says what a caller does about each.
STATUS = {
    "bad-request": 400,  # the call itself is wrong
    "too-large": 413,  # the body is over the limit
    "unplannable": 422,  # the request is none that has a prompt of text: let the decoder answer it
    "unsupported": 409,  # this decoder or model is set up in a way that no block can be brought to
    "moved": 409,  # the decoder's internals are not those that this package knows
    "canary": 409,  # the decoder could not make a block of its own to compare with
    "conflict": 409,  # a file is in the way that may not be replaced
    "space": 507,  # the store has no room for the blocks
    "budget": 429,  # the day's writes are used up
}


class Refusal(Exception):
    """A refusal with its reason; `code` is a key of STATUS."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return STATUS[self.code]
