"""The `promptkit` command: parses, calls one function of the library, prints one result."""

from .app import main as main
