"""Commands of `whiten` that need the runtime alone, and functions shared by all commands."""
