"""Agents, their models and tools, and the runner that lets them answer."""
