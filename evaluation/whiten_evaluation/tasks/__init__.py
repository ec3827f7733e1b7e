"""Files and scores of the evaluation tasks."""
