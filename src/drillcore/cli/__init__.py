"""The command line. Each verb is a plain function of `drillcore`; this only reads options and prints."""

from drillcore.cli.app import main

__all__ = ["main"]
