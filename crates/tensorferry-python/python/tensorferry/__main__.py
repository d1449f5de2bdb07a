"""``python -m tensorferry`` is the command ``tensorferry``."""

from ._launch import main

main()
