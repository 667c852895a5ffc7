"""The daemon. See README.md beside this file."""

__version__ = "0.1.0"
