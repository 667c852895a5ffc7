"""Which samples of a dataset a stream uses, and how often: lists of keys, groups, weights."""
