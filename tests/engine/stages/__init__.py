"""Tests of the stages of a call."""
