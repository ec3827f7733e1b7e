"""Files and directories that an export writes."""
