"""Batches on a GPU, or in page-locked memory: who copies them, and when their slots are free again.

All calls of torch.cuda are in `cuda`.
"""
