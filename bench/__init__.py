"""Measures, in one run each, the ratios that the project promises: `python -m bench [--quick]`."""
