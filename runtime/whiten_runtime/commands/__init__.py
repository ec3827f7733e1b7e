"""Commands of `whiten` that need only the runtime, and functions shared by all commands."""
