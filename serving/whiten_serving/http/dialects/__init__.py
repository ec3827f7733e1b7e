"""The routes of each dialect: what requests hold, and what answers look like."""
