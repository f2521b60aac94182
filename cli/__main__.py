"""`python -m promptkit_cli`."""

from . import main

main()
