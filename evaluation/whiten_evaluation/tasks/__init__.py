"""Read the files of the evaluation tasks, and score vectors on them."""
