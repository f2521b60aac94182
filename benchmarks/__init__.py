"""Measurements: time, memory and tokens per second of each stage, beside what the machine allows."""
