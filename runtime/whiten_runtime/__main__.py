"""Run `whiten` as `python -m whiten_runtime`, where its script is not on the path."""

from whiten_runtime.commands.console import main

main()
