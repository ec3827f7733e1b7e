"""Turn a pretrained language model into a bundle. `import whiten` has the public names."""
