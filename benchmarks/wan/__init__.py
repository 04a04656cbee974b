"""Hosts with home-like links on one machine: network namespaces joined by an emulated WAN.

Needs root on Linux. ``docs/benchmarks-wan.md`` says how to use it, and what it
does not emulate.
"""

from benchmarks.wan.emulator import Wan, open_wan
from benchmarks.wan.links import Backend, Link
from benchmarks.wan.tools import WanError

__all__ = ["Backend", "Link", "Wan", "WanError", "open_wan"]
