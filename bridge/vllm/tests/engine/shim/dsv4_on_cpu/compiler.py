"""The half of a Triton backend that would compile. Under the interpreter nothing is compiled."""

from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend


class Backend(BaseBackend):
    """Answers for the target "cpu"."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Whether a target is ours."""
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        """A name for the compiler's cache."""
        return "none"

    def _no(self, *_: Any) -> NoReturn:
        raise NotImplementedError("kernels run in the interpreter: set TRITON_INTERPRET=1")

    parse_options = add_stages = load_dialects = _no

    def get_module_map(self) -> dict[str, Any]:
        """No libraries."""
        return {}
