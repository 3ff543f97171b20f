"""Tests of the strategies besides `epochs`."""
