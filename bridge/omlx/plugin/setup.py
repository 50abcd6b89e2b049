"""Puts the .pth file, which loads the import hook at the start of every interpreter, beside the package in a wheel."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithHook(build_py):
    """build_py that adds pdlink_omlx.pth to the root of what is installed."""

    def run(self) -> None:
        """Build as usual, then copy the one file that setuptools has no option for."""
        super().run()
        self.copy_file(str(Path(__file__).parent / "pdlink_omlx.pth"), self.build_lib)


setup(cmdclass={"build_py": WithHook})
