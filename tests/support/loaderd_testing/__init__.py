"""Harnesses and fakes of the tests."""
