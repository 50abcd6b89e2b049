"""The half of a Triton backend that knows the device."""

from typing import Any, NoReturn

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Driver(DriverBase):
    """Says that there is a device, and that it is the CPU."""

    @classmethod
    def is_active(cls) -> bool:
        """Always."""
        return True

    def get_current_target(self) -> GPUTarget:
        """The CPU."""
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def _no(self, *_: Any) -> NoReturn:
        raise NotImplementedError("kernels run in the interpreter: set TRITON_INTERPRET=1")

    map_python_to_cpp_type = get_benchmarker = _no
