"""Puts the program into a wheel, if build-wheel names one."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.environ.get("UNSTUCK_WHEEL_PROGRAM")
        if program:
            build_data["shared_scripts"][program] = "unstuck"
            build_data["tag"] = f"py3-none-{os.environ['UNSTUCK_WHEEL_PLATFORM']}"
            build_data["pure_python"] = False
